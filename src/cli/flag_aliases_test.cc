#include "cli/flag_aliases.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

namespace kvasir::cli {
namespace {

// Flags of a command that loads a model.
const std::vector<Flag> kModelFlags = {{"model", "PATH", ""},
                                       {"hf-repo", "REPO", ""},
                                       {"ctx-size", "N", ""},
                                       {"parallel", "N", ""},
                                       {"threads", "N", ""},
                                       {"alias", "NAME", "", FlagKind::kList},
                                       {"prompt", "TEXT", ""},
                                       {"max-tokens", "N", ""},
                                       {"seed", "N", ""},
                                       {"temperature", "X", ""},
                                       {"hypotheses", "N", ""},
                                       {"repetition-penalty", "X", ""},
                                       {"no-page", "", "", FlagKind::kSwitch},
                                       {"speculate", "MODE", ""},
                                       {"draft-max", "N", ""},
                                       {"draft-model", "M", ""},
                                       {"draft-hf-repo", "REPO", ""},
                                       {"cors-origin", "URL", "", FlagKind::kList},
                                       {"sse-ping-s", "N", ""},
                                       {"kv-format", "F", ""},
                                       {"retention", "R", ""},
                                       {"resume", "FILE", "", FlagKind::kOptional},
                                       {"json", "", "", FlagKind::kSwitch}};
// Flags of one that does not.
const std::vector<Flag> kPlainFlags = {{"name", "TEXT", ""}, {"n", "N", ""}};

Result<RewrittenArguments> Rewrite(std::vector<std::string> arguments,
                                   std::span<const Flag> flags = kModelFlags) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  return RewriteArguments("serve", flags, pointers);
}

// "ARGUMENTS; ignored: FLAGS", each joined by |; or the code of the error and its message.
std::string Rewritten(std::vector<std::string> arguments,
                      std::span<const Flag> flags = kModelFlags) {
  const auto rewritten = Rewrite(std::move(arguments), flags);
  if (!rewritten) {
    return fmt::format("{} {}", static_cast<int>(rewritten.error().code),
                       rewritten.error().message);
  }
  std::string text = fmt::format("{}", fmt::join(rewritten->arguments, "|"));
  if (!rewritten->ignored.empty()) {
    text += fmt::format("; ignored: {}", fmt::join(rewritten->ignored, "|"));
  }
  return text;
}

TEST(FlagAliases, EachAliasIsTheFlagThatItStandsFor) {
  const std::pair<const char*, const char*> aliases[] = {
      {"-m", "--model"},
      {"-hf", "--hf-repo"},
      {"-hfr", "--hf-repo"},
      {"-c", "--ctx-size"},
      {"-np", "--parallel"},
      {"-t", "--threads"},
      {"-a", "--alias"},
      {"-p", "--prompt"},
      {"-n", "--max-tokens"},
      {"--predict", "--max-tokens"},
      {"-s", "--seed"},
      {"--n-predict", "--max-tokens"},
      {"--temp", "--temperature"},
      {"--repeat-penalty", "--repetition-penalty"},
      {"--n", "--hypotheses"},
      {"--spec-draft-n-max", "--draft-max"},
      {"-md", "--draft-model"},
      {"--model-draft", "--draft-model"},
      {"--spec-draft-model", "--draft-model"},
      {"-hfd", "--draft-hf-repo"},
      {"--draft", "--draft-max"},
      {"--draft-n", "--draft-max"},
      {"--cors-origins", "--cors-origin"},
      {"--ctx-size", "--ctx-size"},
      {"--sse-ping-interval", "--sse-ping-s"}};
  for (const auto& [alias, flag] : aliases) {
    const auto rewritten = Rewrite({"--json", alias, "7", "x"});
    ASSERT_TRUE(rewritten) << rewritten.error().message;
    EXPECT_EQ(rewritten->arguments, (std::vector<std::string>{"--json", flag, "7", "x"}));
    EXPECT_EQ(rewritten->written,
              (std::map<std::string, std::string>{{std::string(flag).substr(2), alias}}));
    EXPECT_TRUE(rewritten->ignored.empty());
    EXPECT_EQ(Rewritten({alias}),
              fmt::format("1 {} needs a value; see 'kvasir serve --help'", alias));
  }
  for (const char* alias : {"--no-ui", "--no-webui"}) {
    const auto rewritten = Rewrite({alias, "x"});
    ASSERT_TRUE(rewritten) << rewritten.error().message;
    EXPECT_EQ(rewritten->arguments, (std::vector<std::string>{"--no-page", "x"}));
    EXPECT_TRUE(rewritten->written.empty());
    EXPECT_EQ(Rewritten({fmt::format("{}=false", alias)}), "--no-page=false");
  }
}

TEST(FlagAliases, OnlyALongAliasHasItsValueBehindAnEqualsSign) {
  EXPECT_EQ(Rewritten({"--n-predict=5"}), "--max-tokens|5");
  EXPECT_EQ(Rewritten({"--n-predict=", "x"}), "--max-tokens||x");
  EXPECT_EQ(Rewritten({"--temp=a=b"}), "--temperature|a=b");
  EXPECT_EQ(Rewritten({"-c=5"}), "-c=5");  // unknown to ParseArgs
  EXPECT_EQ(Rewritten({"-c5"}), "-c5");
}

TEST(FlagAliases, TheLastNameThatWasWrittenIsTheOneForMessages) {
  EXPECT_EQ(Rewrite({"-n", "1", "--n-predict", "2"})->written.at("max-tokens"), "--n-predict");
  EXPECT_TRUE(Rewrite({"--max-tokens", "1"})->written.empty());
}

TEST(FlagAliases, LlamaServersWordForTheDefaultLeavesTheFlagOut) {
  for (const char* word :
       {"-np", "--parallel", "-t", "--threads", "-n", "--predict", "--n-predict", "-s", "--seed"}) {
    EXPECT_EQ(Rewritten({"--json", word, "-1", "x"}), "--json|x") << word;
    EXPECT_NE(Rewritten({word, "0"}), "") << word;
  }
  EXPECT_EQ(Rewritten({"-c", "0", "--ctx-size", "0", "--ctx-size=0"}), "");
  EXPECT_EQ(Rewritten({"-c", "-1"}), "--ctx-size|-1");
  EXPECT_EQ(Rewritten({"-c", "00"}), "--ctx-size|00");
  EXPECT_EQ(Rewritten({"-m", "-1"}), "--model|-1");
}

TEST(FlagAliases, AnUnderscoreInTheNameOfAFlagIsADash) {
  EXPECT_EQ(Rewritten({"--ctx_size", "5", "--n_predict=a_b", "x_y"}),
            "--ctx-size|5|--max-tokens|a_b|x_y");
  EXPECT_EQ(Rewrite({"--batch_size", "a_b"})->ignored,
            std::vector<std::string>{"--batch-size a_b"});
  EXPECT_EQ(Rewritten({"--", "--a_b"}), "--|--a_b");
}

TEST(FlagAliases, ACommandsOwnFlagsComeFirst) {
  // Without the flag that it stands for, an alias is nothing.
  EXPECT_EQ(Rewritten({"-c", "5", "-p", "x"}, kPlainFlags), "-c|5|-p|x");
  EXPECT_EQ(Rewritten({"-n", "-1"}, kPlainFlags), "-n|-1");
  const std::vector<Flag> bench = {{"model", "PATH", ""}, {"p", "N", ""}, {"v", "N", ""}};
  EXPECT_EQ(Rewritten({"-p", "-1", "-v", "-ngl"}, bench), "-p|-1|-v|-ngl");
  EXPECT_EQ(Rewrite({"-p", "5"}, bench)->written.size(), 0U);
}

TEST(FlagAliases, AValueIsNeverTakenForAFlag) {
  EXPECT_EQ(Rewritten({"--prompt", "-ngl", "-c", "5"}), "--prompt|-ngl|--ctx-size|5");
  EXPECT_EQ(Rewritten({"-p", "-ngl"}), "--prompt|-ngl");
  EXPECT_EQ(Rewritten({"--alias", "-c", "-a", "--lora"}), "--alias|-c|--alias|--lora");
  EXPECT_EQ(Rewritten({"--prompt", "--", "-c", "5"}), "--prompt|--|--ctx-size|5");
  EXPECT_EQ(Rewritten({"--prompt=-x", "-c", "5"}), "--prompt=-x|--ctx-size|5");
  EXPECT_EQ(Rewritten({"--prompt"}), "--prompt");  // ParseArgs complains
  // Switches have no value, and an optional one is not a flag.
  EXPECT_EQ(Rewritten({"--json", "-c", "5"}), "--json|--ctx-size|5");
  EXPECT_EQ(Rewritten({"--resume", "-c", "5"}), "--resume|--ctx-size|5");
  EXPECT_EQ(Rewritten({"--resume", "f", "-c", "5"}), "--resume|f|--ctx-size|5");
}

TEST(FlagAliases, BehindTwoDashesNothingIsRewritten) {
  EXPECT_EQ(Rewritten({"-c", "5", "--", "-c", "5", "--lora", "--", "-ngl"}),
            "--ctx-size|5|--|-c|5|--lora|--|-ngl");
}

TEST(FlagAliases, TypesOfKeysAndValuesMakeOneKvFormat) {
  EXPECT_EQ(Rewritten({"-ctk", "q8_0", "x"}), "x|--kv-format|k=int8,v=f16");
  EXPECT_EQ(Rewritten({"--cache-type-v=q4_0"}), "--kv-format|k=f16,v=int4");
  EXPECT_EQ(Rewritten({"-ctv", "f32", "--cache-type-k", "bf16"}), "--kv-format|k=bf16,v=f32");
  EXPECT_EQ(Rewritten({"-ctk", "f32", "-ctk", "f16"}), "--kv-format|k=f16,v=f16");
  EXPECT_EQ(Rewritten({"-ctk"}), "1 -ctk needs a value; see 'kvasir serve --help'");
  // It is a flag even where operands end the arguments.
  EXPECT_EQ(Rewritten({"-ctk", "q8_0", "--", "-file"}), "--kv-format|k=int8,v=f16|--|-file");
  for (const char* type : {"q5_1", "Q8_0", "", "int8"}) {
    EXPECT_EQ(Rewritten({"--cache-type-v", type}),
              fmt::format("1 --cache-type-v: '{}' is not available; give f32, f16, bf16, q8_0 (as "
                          "--kv-format int8) or q4_0 (int4)",
                          type));
  }
}

TEST(FlagAliases, WhatIsAlwaysSoIsLeftOutInSilence) {
  EXPECT_EQ(Rewritten({"--jinja", "--metrics", "--slots", "--webui", "--ui", "--cache-prompt",
                       "--no-context-shift", "-no-ag", "--no-log-jsonl"}),
            "");
}

TEST(FlagAliases, HowLlamaServerComputesIsIgnoredAndListed) {
  EXPECT_EQ(Rewritten({"-ngl", "99", "-b", "-5", "--mlock", "x"}),
            "x; ignored: -ngl 99|-b -5|--mlock");
  EXPECT_EQ(Rewritten({"--batch-size=2048", "x"}), "x; ignored: --batch-size=2048");
  EXPECT_EQ(Rewritten({"-ngl"}), "1 -ngl needs a value; see 'kvasir serve --help'");
  // A value may be left out where it is one of a few words.
  EXPECT_EQ(Rewritten({"-fa", "on", "-fa", "--fit", "off", "--log-colors", "x"}),
            "x; ignored: -fa on|-fa|--fit off|--log-colors");
  EXPECT_EQ(Rewritten({"--flash-attn=on", "auto"}), "auto; ignored: --flash-attn=on");
  EXPECT_EQ(Rewritten({"-fa"}), "; ignored: -fa");
  EXPECT_EQ(Rewritten({"--cache-reuse", "0", "--cache-reuse=0"}),
            "; ignored: --cache-reuse 0|--cache-reuse=0");
}

TEST(FlagAliases, AContextThatShiftsIsAPolicy) {
  EXPECT_EQ(Rewritten({"--context-shift"}), "--retention|sinks+window:budget=context,keep=0");
  EXPECT_EQ(Rewritten({"--keep", "-1", "--context-shift", "x"}),
            "x|--retention|sinks+window:budget=context,keep=-1");
  EXPECT_EQ(Rewritten({"--keep=4"}), "; ignored: --keep 4");
  EXPECT_EQ(Rewritten({"--context-shift", "--retention", "window"}),
            "1 --context-shift: is --retention sinks+window:budget=context; give one of both");
}

TEST(FlagAliases, KindsOfSpeculationAreOnOrOff) {
  EXPECT_EQ(Rewritten({"--spec-type", "none"}), "--speculate|off");
  EXPECT_EQ(Rewritten({"--spec-type=draft-simple"}), "--speculate|auto");
  EXPECT_EQ(Rewritten({"--spec-type", "ngram-mod,ngram-cache"}), "--speculate|auto");
  EXPECT_EQ(Rewritten({"--spec-type", "draft-mtp"}),
            "1 --spec-type: 'draft-mtp' is not available; give none (as --speculate off), "
            "draft-simple or ngram-... (as --speculate auto)");
  EXPECT_EQ(Rewritten({"--spec-ngram-size-n", "3", "--draft-p-min=0.5", "-td", "2"}),
            "; ignored: --spec-ngram-size-n 3|--draft-p-min=0.5|-td 2");
  EXPECT_EQ(Rewritten({"--spec-draft-ngl", "99", "--spec-draft-type-k", "q8_0",
                       "--spec-draft-threads-batch=2", "--no-spec-draft-backend-sampling"}),
            "; ignored: --spec-draft-ngl 99|--spec-draft-type-k q8_0|--spec-draft-threads-batch=2|"
            "--no-spec-draft-backend-sampling");
}

TEST(FlagAliases, FlagsWhoseEffectIsNotThereAreUnsupportedWithAReason) {
  const std::pair<std::vector<std::string>, const char*> refused[] = {
      {{"--mmproj-url", "x"}, "--mmproj-url: images, audio and video are not available"},
      {{"--control-vector", "x"}, "--control-vector: control vectors are not available"},
      {{"--spec-draft-replace", "a", "b"},
       "--spec-draft-replace: the draft model is computed as the model is; --draft-model and "
       "--draft-max say which and how much"},
      {{"--rope-scaling=yarn"}, "--rope-scaling: positions are as the model's files say"},
      {{"--cache-reuse", "256"},
       "--cache-reuse: only what a prompt has in common from its beginning is reused; give 0, or "
       "leave it out"},
      {{"--cache-reuse"},
       "--cache-reuse: only what a prompt has in common from its beginning is reused; give 0, or "
       "leave it out"},
      {{"-v"}, "-v: --log-level says what goes to stderr"},
      {{"-hft", "secret"},
       "-hft: set HF_TOKEN: other users of the machine can read a command line"}};
  for (const auto& [arguments, message] : refused) {
    EXPECT_EQ(Rewritten(arguments), fmt::format("8 {} (docs/from-llama-server.md)", message));
  }
}

TEST(FlagAliases, NamesOfVllmAreTakenToo) {
  EXPECT_EQ(Rewritten({"--max-model-len", "4096"}), "--ctx-size|4096");
  EXPECT_EQ(Rewritten({"--enable-prefix-caching"}), "");
  EXPECT_EQ(Rewritten({"--gpu-memory-utilization", "0.9", "-tp", "2", "--enforce-eager"}),
            "; ignored: --gpu-memory-utilization 0.9|-tp 2|--enforce-eager");
  EXPECT_EQ(Rewritten({"--kv-cache-dtype", "fp8"}),
            "8 --kv-cache-dtype: --kv-format says how K and V are stored "
            "(docs/from-llama-server.md)");
}

TEST(FlagAliases, ACommandWithoutAModelTakesNoFlagOfLlamaServer) {
  for (const char* flag : {"-ngl", "--lora", "--jinja", "-fa", "-ctk", "--cache-reuse"}) {
    EXPECT_EQ(Rewritten({flag, "1"}, kPlainFlags), fmt::format("{}|1", flag));
  }
}

TEST(FlagAliases, ArgumentsThatAreNoFlagsStayAsTheyAre) {
  EXPECT_EQ(Rewritten({}), "");
  EXPECT_EQ(Rewritten({"a", "", "-", "lora-draft", "-h", "--help", "--nope=1", "-5", "\xff"}),
            "a||-|lora-draft|-h|--help|--nope=1|-5|\xff");
}

TEST(FlagAliases, TheNearestFlagMayBeAnAliasThatTheCommandHas) {
  EXPECT_EQ(NearestFlag("--n-predic", kModelFlags), "--n-predict");
  EXPECT_EQ(NearestFlag("--ctx-sise=9", kModelFlags), "--ctx-size");
  EXPECT_EQ(NearestFlag("--hlp", kModelFlags), "--help");
  EXPECT_EQ(NearestFlag("-hfx", kModelFlags), "-hfr");
  EXPECT_EQ(NearestFlag("--n-predic", kPlainFlags), std::nullopt);
  EXPECT_EQ(NearestFlag("--nam", kPlainFlags), "--name");
  EXPECT_EQ(NearestFlag("--port", kModelFlags), std::nullopt);  // not --lora
  EXPECT_EQ(NearestFlag("--ctx-shift", kModelFlags), "--context-shift");
  EXPECT_EQ(NearestFlag("--retain=window", kModelFlags), "--retention");
  EXPECT_EQ(NearestFlag("--keap", kModelFlags), "--keep");
  EXPECT_EQ(NearestFlag("--ctx-shift", kPlainFlags), std::nullopt);
  EXPECT_EQ(NearestFlag("--max-tok", kModelFlags), "--max-tokens");
  // Names of up to three letters resemble too much.
  EXPECT_EQ(NearestFlag("-x", kModelFlags), std::nullopt);
  EXPECT_EQ(NearestFlag("--x", kModelFlags), std::nullopt);
  EXPECT_EQ(NearestFlag("", kModelFlags), std::nullopt);
  EXPECT_EQ(NearestFlag("--something-else", kModelFlags), std::nullopt);
}

}  // namespace
}  // namespace kvasir::cli
