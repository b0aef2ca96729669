#include "cli/args.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <array>

namespace kvasir::cli {
namespace {

const std::vector<Flag> kParsedFlags = {{"prompt", "TEXT", ""},
                                        {"p", "N", ""},
                                        {"stop", "TEXT", "", FlagKind::kList},
                                        {"json", "", "", FlagKind::kSwitch},
                                        {"v", "", "", FlagKind::kSwitch},
                                        {"w", "", "", FlagKind::kSwitch},
                                        {"resume", "FILE", "", FlagKind::kOptional},
                                        {"trace", "FILE", "", FlagKind::kValue, "tracing"},
                                        {"turbo", "", "", FlagKind::kSwitch, "turbo mode"}};

// Returns what ParseArgs makes of the arguments: "prompt=[x] stop=[a|b] operands=[c]" in the order
// of the table, then help; or the code of the error (1: kInvalidArgument, 8: kUnsupported) and its
// text.
std::string Parsed(std::vector<std::string> arguments, size_t max_operands = 9) {
  const Result<Args> args = ParseArgs("run", kParsedFlags, std::move(arguments), max_operands);
  if (!args) return fmt::format("{} {}", static_cast<int>(args.error().code), args.error().message);
  std::vector<std::string> parts;
  const auto add = [&](std::string_view shown, const std::string& name) {
    if (!args->Has(name)) return;
    parts.push_back(fmt::format("{}=[{}]", shown, fmt::join(args->List(name), "|")));
  };
  for (const Flag& flag : kParsedFlags) add(flag.name, flag.name);
  add("help", "help");
  add("operands", kOperands);
  return fmt::format("{}", fmt::join(parts, " "));
}

std::string NeedsValue(std::string_view flag) {
  return fmt::format("1 {} needs a value; see 'kvasir run --help'", flag);
}
std::string TakesNone(std::string_view flag) {
  return fmt::format("1 {}: takes no value; give the flag alone, or leave it out", flag);
}
std::string Unknown(std::string_view argument, std::string_view nearest = "") {
  return fmt::format("1 unknown argument '{}'{}; 'kvasir run --help' lists the flags", argument,
                     nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest));
}
std::string GivenTimes(std::string_view flag, int times) {
  return fmt::format("1 {}: given {} times; give it once", flag, times);
}

Args WithText(std::string text) {
  Args args;
  args.Set("n", {"earlier", std::move(text)});
  return args;
}

// Returns the message; its code must be kInvalidArgument.
template <typename T>
std::string RefusalOf(const Result<T>& result) {
  if (result) return "no error";
  EXPECT_EQ(result.error().code, Code::kInvalidArgument);
  EXPECT_EQ(result.error().field, std::nullopt);
  return result.error().message;
}

TEST(Args, ALongFlagTakesTheNextArgumentOrTheTextBehindItsEqualsSign) {
  EXPECT_EQ(Parsed({}), "");
  EXPECT_EQ(Parsed({"--prompt", "x"}), "prompt=[x]");
  EXPECT_EQ(Parsed({"--prompt=x"}), "prompt=[x]");
  EXPECT_EQ(Parsed({"--prompt=x=y"}), "prompt=[x=y]");
  EXPECT_EQ(Parsed({"--prompt==x"}), "prompt=[=x]");
  EXPECT_EQ(Parsed({"--prompt", "x=y"}), "prompt=[x=y]");
  EXPECT_EQ(Parsed({"--prompt", ""}), "prompt=[]");
  EXPECT_EQ(Parsed({"--prompt=\n"}), "prompt=[\n]");
  EXPECT_EQ(Parsed({"--prompt=--json"}), "prompt=[--json]");
  EXPECT_EQ(Parsed({"--stop=--", "x"}), "stop=[--] operands=[x]");
}

TEST(Args, AShortFlagTakesTheNextArgumentOrAllThatIsBehindItsLetter) {
  EXPECT_EQ(Parsed({"-p", "5"}), "p=[5]");
  EXPECT_EQ(Parsed({"-p5"}), "p=[5]");
  EXPECT_EQ(Parsed({"-p-5"}), "p=[-5]");
  EXPECT_EQ(Parsed({"-p", ""}), "p=[]");
  EXPECT_EQ(Parsed({"-p 5"}), "p=[ 5]");
  EXPECT_EQ(Parsed({"-p\n5"}), "p=[\n5]");
  // One dash and a letter; the rest is the value.
  EXPECT_EQ(Parsed({"-prompt", "x"}), "p=[rompt] operands=[x]");
  // The equals sign belongs to the value of a short flag.
  EXPECT_EQ(Parsed({"-p=5"}), "p=[=5]");
  EXPECT_EQ(Parsed({"-p="}), "p=[=]");
}

TEST(Args, AValueMayLookLikeAFlag) {
  EXPECT_EQ(Parsed({"-p", "-5"}), "p=[-5]");
  EXPECT_EQ(Parsed({"-p", "--json"}), "p=[--json]");
  EXPECT_EQ(Parsed({"-p", "-"}), "p=[-]");
  EXPECT_EQ(Parsed({"-p", "--", "--json"}), "p=[--] json=[true]");
  EXPECT_EQ(Parsed({"--prompt", "-h"}), "prompt=[-h]");
  EXPECT_EQ(Parsed({"--prompt", "--help", "--json"}), "prompt=[--help] json=[true]");
  EXPECT_EQ(Parsed({"--prompt", "--prompt"}), "prompt=[--prompt]");
  EXPECT_EQ(Parsed({"--prompt", "--prompt", "x"}), "prompt=[--prompt] operands=[x]");
  EXPECT_EQ(Parsed({"--stop", "--stop", "--stop", "-5"}), "stop=[--stop|-5]");
}

TEST(Args, AValueIsNeverSplitOrUnquoted) {
  for (const std::string value :
       {"[a,b]", "a,b", "{}", "\"q\"", "'q'", "a b", "%x", "[[", "true"}) {
    EXPECT_EQ(Parsed({"--prompt", value}), "prompt=[" + value + "]");
    EXPECT_EQ(Parsed({"--prompt=" + value}), "prompt=[" + value + "]");
    EXPECT_EQ(Parsed({"-p" + value}), "p=[" + value + "]");
    EXPECT_EQ(Parsed({"--stop", value, "--stop=" + value}), "stop=[" + value + "|" + value + "]");
    EXPECT_EQ(Parsed({"--resume", value}), "resume=[" + value + "]");
    EXPECT_EQ(Parsed({value}), "operands=[" + value + "]");
  }
}

TEST(Args, AFlagAtTheEndThatNeedsAValueIsRefused) {
  EXPECT_EQ(Parsed({"--prompt"}), NeedsValue("--prompt"));
  EXPECT_EQ(Parsed({"-p"}), NeedsValue("-p"));
  EXPECT_EQ(Parsed({"-vp"}), NeedsValue("-p"));
  EXPECT_EQ(Parsed({"--stop"}), NeedsValue("--stop"));
  EXPECT_EQ(Parsed({"--stop", "a", "--stop"}), NeedsValue("--stop"));
  EXPECT_EQ(Parsed({"--trace"}), NeedsValue("--trace"));
}

TEST(Args, ASwitchTakesNoValue) {
  EXPECT_EQ(Parsed({"--json"}), "json=[true]");
  EXPECT_EQ(Parsed({"--json", "x"}), "json=[true] operands=[x]");
  EXPECT_EQ(Parsed({"--json", "true"}), "json=[true] operands=[true]");
  EXPECT_EQ(Parsed({"--json", "--json"}), "json=[true|true]");
  EXPECT_EQ(Parsed({"--json=true"}), "json=[true]");
  for (const char* value : {"false", "1", "0", "on", "True", "x", "=", " "}) {
    EXPECT_EQ(Parsed({fmt::format("--json={}", value)}), TakesNone("--json")) << value;
  }
  EXPECT_EQ(Parsed({"--json=false", "--json"}), TakesNone("--json"));
}

TEST(Args, SwitchesOfOneLetterMayBeJoinedAndEndWithAFlagThatTakesAValue) {
  EXPECT_EQ(Parsed({"-v"}), "v=[true]");
  EXPECT_EQ(Parsed({"-vw"}), "v=[true] w=[true]");
  EXPECT_EQ(Parsed({"-wvw"}), "v=[true] w=[true|true]");
  EXPECT_EQ(Parsed({"-vwp5"}), "p=[5] v=[true] w=[true]");
  EXPECT_EQ(Parsed({"-vp", "5"}), "p=[5] v=[true]");
  EXPECT_EQ(Parsed({"-pvw"}), "p=[vw]");
  EXPECT_EQ(Parsed({"-vh"}), "v=[true] help=[true]");
  EXPECT_EQ(Parsed({"-hv"}), "v=[true] help=[true]");
  EXPECT_EQ(Parsed({"-v", "-w", "--", "-v"}), "v=[true] w=[true] operands=[-v]");
  EXPECT_EQ(Parsed({"-vx"}), Unknown("-x"));
}

TEST(Args, AFlagOfOneValueIsGivenOnce) {
  EXPECT_EQ(Parsed({"--prompt", "a", "--prompt", "b"}), GivenTimes("--prompt", 2));
  EXPECT_EQ(Parsed({"--prompt", "a", "--prompt=a"}), GivenTimes("--prompt", 2));
  EXPECT_EQ(Parsed({"-p", "1", "-p2", "-p3"}), GivenTimes("-p", 3));
  EXPECT_EQ(Parsed({"--resume", "--resume"}), GivenTimes("--resume", 2));
  EXPECT_EQ(Parsed({"--resume", "a", "--resume"}), GivenTimes("--resume", 2));
}

TEST(Args, AListKeepsAllItsValuesInTheirOrder) {
  EXPECT_EQ(Parsed({"--stop", "b", "--stop=a", "--stop", "-c"}), "stop=[b|a|-c]");
  EXPECT_EQ(Parsed({"--stop", "a", "--json", "--stop", "a"}), "stop=[a|a] json=[true]");
  EXPECT_EQ(Parsed({"--stop", "", "--stop", ""}), "stop=[|]");
  // One value each time.
  EXPECT_EQ(Parsed({"--stop", "a", "b"}), "stop=[a] operands=[b]");
  const auto args = ParseArgs("run", kParsedFlags, {"--stop", "a", "--stop", "b"});
  ASSERT_TRUE(args) << args.error().message;
  EXPECT_EQ(args->Text("stop"), "b");
  EXPECT_EQ(args->List("stop"), (std::vector<std::string>{"a", "b"}));
}

TEST(Args, AnOptionalValueIsTheNextArgumentUnlessThatIsAFlag) {
  EXPECT_EQ(Parsed({"--resume"}), "resume=[]");
  EXPECT_EQ(Parsed({"--resume="}), "resume=[]");
  EXPECT_EQ(Parsed({"--resume", "f"}), "resume=[f]");
  EXPECT_EQ(Parsed({"--resume=f"}), "resume=[f]");
  EXPECT_EQ(Parsed({"--resume=--json"}), "resume=[--json]");
  EXPECT_EQ(Parsed({"--resume", ""}), "resume=[]");
  EXPECT_EQ(Parsed({"--resume", "", "f"}), "resume=[] operands=[f]");
  EXPECT_EQ(Parsed({"--resume", "f", "g"}), "resume=[f] operands=[g]");
  EXPECT_EQ(Parsed({"--resume=f", "g"}), "resume=[f] operands=[g]");
  EXPECT_EQ(Parsed({"f", "--resume"}), "resume=[] operands=[f]");
  EXPECT_EQ(Parsed({"--resume", "--json"}), "json=[true] resume=[]");
  EXPECT_EQ(Parsed({"--resume", "-v"}), "v=[true] resume=[]");
  EXPECT_EQ(Parsed({"--resume", "-p5"}), "p=[5] resume=[]");
  EXPECT_EQ(Parsed({"--resume", "-h"}), "resume=[] help=[true]");
  EXPECT_EQ(Parsed({"--resume", "--nope"}), Unknown("--nope"));
  EXPECT_EQ(Parsed({"--resume", "-x"}), Unknown("-x"));
  // No flag: a dash alone, a dash before a digit, two dashes before a space.
  EXPECT_EQ(Parsed({"--resume", "-"}), "resume=[-]");
  EXPECT_EQ(Parsed({"--resume", "-5"}), "resume=[-5]");
  EXPECT_EQ(Parsed({"--resume", "-5x"}), "resume=[-5x]");
  EXPECT_EQ(Parsed({"--resume", "- x"}), "resume=[- x]");
  EXPECT_EQ(Parsed({"--resume", "-- x"}), "resume=[-- x]");
  EXPECT_EQ(Parsed({"--resume", "---"}), "resume=[---]");
  const auto args = ParseArgs("run", kParsedFlags, {"--resume"});
  ASSERT_TRUE(args) << args.error().message;
  EXPECT_EQ(args->Text("resume"), "");
}

TEST(Args, ArgumentsThatNoFlagTakesAreOperandsUpToTheCommandsMost) {
  EXPECT_EQ(Parsed({"a", "--json", "b"}), "json=[true] operands=[a|b]");
  EXPECT_EQ(Parsed({"-"}), "operands=[-]");
  EXPECT_EQ(Parsed({""}), "operands=[]");
  EXPECT_EQ(Parsed({"json"}), "operands=[json]");
  EXPECT_EQ(Parsed({"++", "/json", "/p", "5"}), "operands=[++|/json|/p|5]");
  EXPECT_EQ(Parsed({"a", "b"}, 2), "operands=[a|b]");
  EXPECT_EQ(Parsed({"a", "b"}, 1), Unknown("b"));
  EXPECT_EQ(Parsed({"a"}, 0), Unknown("a"));
  EXPECT_EQ(Parsed({""}, 0), Unknown(""));
  EXPECT_EQ(Parsed({"-"}, 0), Unknown("-"));
  EXPECT_EQ(Parsed({"a", "--json", "b", "c"}, 1), Unknown("b"));
  EXPECT_EQ(RefusalOf(ParseArgs("run", kParsedFlags, {"a"})), Unknown("a").substr(2));
}

TEST(Args, AWordWhereOnlyFlagsAreTakenMayBeAModel) {
  const std::vector<Flag> flags = {{"model", "PATH", ""}, {"json", "", "", FlagKind::kSwitch}};
  const auto refused = [&](std::vector<std::string> arguments, size_t max_operands = 0) {
    return RefusalOf(ParseArgs("plan", flags, std::move(arguments), max_operands));
  };
  const std::string end = "; 'kvasir plan --help' lists the flags";
  EXPECT_EQ(refused({"a/b"}), "unknown argument 'a/b' (a model is --model a/b)" + end);
  EXPECT_EQ(refused({"-"}), "unknown argument '-'" + end);
  EXPECT_EQ(refused({"a", "b"}, 1), "unknown argument 'b'" + end) << "it takes words";
}

TEST(Args, BehindTwoDashesNoArgumentIsAFlag) {
  EXPECT_EQ(Parsed({"--"}), "");
  EXPECT_EQ(Parsed({"--"}, 0), "");
  EXPECT_EQ(Parsed({"--", "--json"}), "operands=[--json]");
  EXPECT_EQ(Parsed({"--", "-h"}), "operands=[-h]");
  EXPECT_EQ(Parsed({"--", "-5", "-", "", "---"}), "operands=[-5|-||---]");
  EXPECT_EQ(Parsed({"--", "--prompt", "x"}), "operands=[--prompt|x]");
  EXPECT_EQ(Parsed({"--json", "a", "--", "-b", "--json"}), "json=[true] operands=[a|-b|--json]");
  EXPECT_EQ(Parsed({"--prompt", "x", "--"}), "prompt=[x]");
  EXPECT_EQ(Parsed({"--prompt", "--", "--", "-y"}), "prompt=[--] operands=[-y]");
  EXPECT_EQ(Parsed({"--resume=f", "--", "-v"}), "resume=[f] operands=[-v]");
  // Only the first pair ends the flags.
  EXPECT_EQ(Parsed({"--", "--"}), "operands=[--]");
  EXPECT_EQ(Parsed({"--", "a", "--", "--"}), "operands=[a|--|--]");
  EXPECT_EQ(Parsed({"--", "x"}, 0), Unknown("x"));
  EXPECT_EQ(Parsed({"--", "--jsn"}, 0), Unknown("--jsn", "--json"));
}

TEST(Args, UnknownFlagsAreRefusedWithTheNearestKnownOne) {
  EXPECT_EQ(Parsed({"--nope"}), Unknown("--nope"));
  EXPECT_EQ(Parsed({"--promt", "x"}), Unknown("--promt", "--prompt"));
  EXPECT_EQ(Parsed({"--prompts"}), Unknown("--prompts", "--prompt"));
  EXPECT_EQ(Parsed({"--prmt=x"}), Unknown("--prmt=x", "--prompt"));
  EXPECT_EQ(Parsed({"--hepl"}), Unknown("--hepl", "--help"));
  EXPECT_EQ(Parsed({"-jsonn"}), Unknown("-jsonn", "--json"));
  EXPECT_EQ(Parsed({"--json-x"}), Unknown("--json-x", "--json"));
  // Capitals differ, and no flag may be shortened.
  EXPECT_EQ(Parsed({"--Prompt", "x"}), Unknown("--Prompt", "--prompt"));
  EXPECT_EQ(Parsed({"-V"}), Unknown("-V"));
  EXPECT_EQ(Parsed({"--resum"}), Unknown("--resum", "--resume"));
  EXPECT_EQ(Parsed({"--js"}), Unknown("--js", "--json"));
  // The number of dashes says which flag it is.
  EXPECT_EQ(Parsed({"--p", "5"}), Unknown("--p"));
  EXPECT_EQ(Parsed({"--h"}), Unknown("--h"));
  EXPECT_EQ(Parsed({"---json"}), Unknown("---json", "--json"));
  for (const char* none : {"-x", "-x5", "-5", "-5x", "--5", "---", "-!", "--!x", "-- x", "--=x",
                           "-=x", "- x", "-\n", "--\nx"}) {
    EXPECT_EQ(Parsed({none}), Unknown(none));
  }
  EXPECT_EQ(Parsed({"- json"}), Unknown("- json", "--json"));
  EXPECT_EQ(Parsed({"--json x"}), Unknown("--json x", "--json"));
  EXPECT_EQ(Parsed({"--nope", "--nope2"}), Unknown("--nope"));
}

TEST(Args, HelpIsSetWhereverItStandsAndForgivesOtherMistakes) {
  EXPECT_EQ(Parsed({"-h"}), "help=[true]");
  EXPECT_EQ(Parsed({"--help"}), "help=[true]");
  EXPECT_EQ(Parsed({"--nope", "-h"}), "help=[true]");
  EXPECT_EQ(Parsed({"-h", "--nope"}), "help=[true]");
  EXPECT_EQ(Parsed({"a", "-h"}, 0), "help=[true]");
  EXPECT_EQ(Parsed({"--json", "--help"}), "json=[true] help=[true]");
  EXPECT_EQ(Parsed({"--json=false", "-h"}), "json=[false] help=[true]");
  EXPECT_EQ(Parsed({"--prompt", "a", "--prompt", "b", "-h"}), "prompt=[a|b] help=[true]");
  EXPECT_EQ(Parsed({"--trace", "f", "-h"}), "trace=[f] help=[true]");
  EXPECT_EQ(Parsed({"-h", "--prompt"}), NeedsValue("--prompt"));
  const auto args = ParseArgs("run", {}, {"--help"});
  ASSERT_TRUE(args) << args.error().message;
  EXPECT_TRUE(args->Has("help"));
}

TEST(Args, HelpExpertIsForCommandsThatHaveSuchFlags) {
  EXPECT_EQ(Parsed({"--help-expert"}), Unknown("--help-expert"));
  std::vector<Flag> flags = {{"pitch", "HZ", ""}};
  flags[0].is_expert = true;
  const auto args = ParseArgs("run", flags, {"--nope", "--help-expert"});
  ASSERT_TRUE(args) << args.error().message;
  EXPECT_TRUE(args->Has("help-expert"));
  EXPECT_FALSE(args->Has("help"));
}

TEST(Args, AFlagOfAPartThatIsNotThereYetIsUnsupported) {
  const std::string tracing =
      "8 --trace: tracing is not available in this version; leave the flag out";
  const std::string turbo =
      "8 --turbo: turbo mode is not available in this version; leave the flag out";
  EXPECT_EQ(static_cast<int>(Code::kUnsupported), 8);
  EXPECT_EQ(Parsed({"--trace", "f"}), tracing);
  EXPECT_EQ(Parsed({"--trace=f", "--trace=f"}), tracing);
  EXPECT_EQ(Parsed({"--turbo"}), turbo);
  EXPECT_EQ(Parsed({"--turbo=false"}), turbo);
  EXPECT_EQ(Parsed({"--turbo", "--trace", "f"}), tracing);  // in the order of the table
}

TEST(Args, OfSeveralMistakesAMissingValueComesFirstAndAnUnknownArgumentLast) {
  EXPECT_EQ(Parsed({"--nope", "--json=false", "--prompt"}), NeedsValue("--prompt"));
  EXPECT_EQ(Parsed({"--nope", "--json=false"}), TakesNone("--json"));
  EXPECT_EQ(Parsed({"--nope", "-p1", "-p2"}), GivenTimes("-p", 2));
  EXPECT_EQ(Parsed({"--json=no", "-p1", "-p2"}), GivenTimes("-p", 2));
  EXPECT_EQ(Parsed({"--trace", "f", "--json=no"}), TakesNone("--json"));
}

TEST(Args, BytesOfAnyKindReachTheValuesUnchanged) {
  using namespace std::string_literals;
  EXPECT_EQ(Parsed({"--prompt", "a\0b"s}), "prompt=[a\0b]"s);
  EXPECT_EQ(Parsed({"--prompt=a\0b"s}), "prompt=[a\0b]"s);
  EXPECT_EQ(Parsed({"-p\0"s}), "p=[\0]"s);
  EXPECT_EQ(Parsed({"\0"s}), "operands=[\0]"s);
  EXPECT_EQ(Parsed({"--prompt\0"s, "x"}), Unknown("--prompt\0"s, "--prompt"));
  EXPECT_EQ(Parsed({"--prompt", "\xff\xfe"}), "prompt=[\xff\xfe]");
  EXPECT_EQ(Parsed({"\xff"}), "operands=[\xff]");
  EXPECT_EQ(Parsed({"--\xff", "x"}), Unknown("--\xff"));
  EXPECT_EQ(Parsed({"-\xc3\xa9"}), Unknown("-\xc3\xa9"));
  EXPECT_EQ(Parsed({"--pr\xc3\xb6mpt"}), Unknown("--pr\xc3\xb6mpt", "--prompt"));
}

TEST(Args, ManyAndLongArgumentsAreTaken) {
  constexpr size_t kMany = 20'000;
  std::vector<std::string> arguments, values;
  for (size_t i = 0; i < kMany; ++i) {
    values.push_back(std::to_string(i));
    arguments.insert(arguments.end(), {"--stop", values.back(), "file" + values.back()});
  }
  const auto args = ParseArgs("run", kParsedFlags, arguments, kMany);
  ASSERT_TRUE(args) << args.error().message;
  EXPECT_EQ(args->List("stop"), values);
  ASSERT_EQ(args->List(kOperands).size(), kMany);
  EXPECT_EQ(args->List(kOperands).back(), "file19999");
  EXPECT_EQ(RefusalOf(ParseArgs("run", kParsedFlags, arguments, kMany - 1)),
            Unknown("file19999").substr(2));
  const std::string large(1 << 20, 'x');
  EXPECT_EQ(Parsed({"--prompt=" + large}), "prompt=[" + large + "]");
  EXPECT_EQ(Parsed({"--" + large}), Unknown("--" + large));
  const std::string switches = "-" + std::string(1000, 'v');
  EXPECT_EQ(ParseArgs("run", kParsedFlags, {switches})->List("v").size(), 1000U);
}

TEST(Args, AValueBehindAnEqualsSignMayBeEmpty) {
  EXPECT_EQ(Parsed({"--prompt="}), "prompt=[]");
  EXPECT_EQ(Parsed({"--prompt=", "y"}), "prompt=[] operands=[y]");
  EXPECT_EQ(Parsed({"--prompt=", "--json"}), "prompt=[] json=[true]");
  EXPECT_EQ(Parsed({"--resume=", "f"}), "resume=[] operands=[f]");
  EXPECT_EQ(Parsed({"--json="}), TakesNone("--json"));
}

TEST(Args, AnOptionalValueEndsBeforeTwoDashes) {
  EXPECT_EQ(Parsed({"--resume", "--", "-v"}), "resume=[] operands=[-v]");
  EXPECT_EQ(Parsed({"--resume", "f", "--", "-v"}), "resume=[f] operands=[-v]");
  EXPECT_EQ(Parsed({"--resume", "--"}), "resume=[]");
}

TEST(Args, EachUseOfASwitchIsChecked) {
  EXPECT_EQ(Parsed({"--json", "--json=false"}), TakesNone("--json"));
  EXPECT_EQ(Parsed({"--json={}"}), TakesNone("--json"));
  EXPECT_EQ(Parsed({"-v=true"}), Unknown("-=true"));
  EXPECT_EQ(Parsed({"-v-w"}), Unknown("--w"));
  EXPECT_EQ(Parsed({"-help"}), "help=[true]");
}

TEST(Args, NamesOfOneLetterHaveOneDash) {
  EXPECT_EQ(Dashed("p"), "-p");
  EXPECT_EQ(Dashed("threads"), "--threads");
  EXPECT_EQ(Dashed("to"), "--to");
}

TEST(Args, AFlagThatIsNotGivenHasNoText) {
  Args args;
  EXPECT_FALSE(args.Has("n"));
  EXPECT_EQ(args.Text("n"), std::nullopt);
  EXPECT_TRUE(args.List("n").empty());
  EXPECT_FALSE(args.IsFromConfig("n"));
  args.Set("n", {});
  EXPECT_TRUE(args.Has("n"));
  EXPECT_EQ(args.Text("n"), std::nullopt);
  args.Set("n", {"a", "b"});
  EXPECT_EQ(args.Text("n"), "b");
  args.Set("n", {"c"});
  EXPECT_EQ(args.List("n"), std::vector<std::string>{"c"});
}

TEST(Args, MessagesNameTheFlagAsTheUserWroteIt) {
  Args args = WithText("x");
  EXPECT_EQ(args.Written("n"), "-n");
  EXPECT_EQ(args.Written("threads"), "--threads");
  args.SetWritten({{"n", "--n-predict"}});
  EXPECT_EQ(args.Written("n"), "--n-predict");
  const std::array<std::string_view, 1> choices = {"a"};
  for (const std::string& message :
       {RefusalOf(args.Uint("n", 0, 9, 0)), RefusalOf(args.Bytes("n", 0)),
        RefusalOf(args.Float("n", {0, 9}, 0)), RefusalOf(args.OneOf("n", choices, "a"))}) {
    EXPECT_TRUE(message.starts_with("--n-predict: 'x' is not valid; give ")) << message;
  }
  EXPECT_TRUE(RefusalOf(args.UintList("n", 0, 9, {})).starts_with("--n-predict: item 0 is 'x'"));
}

TEST(Args, UintTakesDigitsInItsRange) {
  constexpr uint64_t kMost = UINT64_MAX;
  EXPECT_EQ(Args().Uint("n", 1, 9, 77), 77U);  // the default may be out of range
  EXPECT_EQ(WithText("1").Uint("n", 1, 9, 0), 1U);
  EXPECT_EQ(WithText("9").Uint("n", 1, 9, 0), 9U);
  EXPECT_EQ(WithText("007").Uint("n", 1, 9, 0), 7U);
  EXPECT_EQ(WithText("18446744073709551615").Uint("n", 0, kMost, 0), kMost);
  for (const std::string text : {"0", "10", "18446744073709551616", "", "-1", "+1", " 1", "1 ",
                                 "1.0", "1e0", "0x1", "one", "\xd9\xa1"}) {
    EXPECT_EQ(RefusalOf(WithText(text).Uint("n", 1, 9, 5)),
              "-n: '" + text + "' is not valid; give a whole number from 1 to 9");
  }
  // A limit of the type is named only to a number beyond it.
  EXPECT_EQ(RefusalOf(WithText("0").Uint("n", 1, kMost, 5)),
            "-n: '0' is not valid; give a whole number of at least 1");
  EXPECT_EQ(RefusalOf(WithText("x").Uint("n", 0, UINT32_MAX, 5)),
            "-n: 'x' is not valid; give a whole number of at least 0");
  EXPECT_EQ(RefusalOf(WithText("4294967296").Uint("n", 0, UINT32_MAX, 5)),
            "-n: '4294967296' is not valid; give a whole number from 0 to 4294967295");
}

TEST(Args, BytesTakesASizeThatIsNotZero) {
  EXPECT_EQ(Args().Bytes("n", 0), 0U);
  EXPECT_EQ(WithText("65536").Bytes("n", 1), 65536U);
  EXPECT_EQ(WithText("2GiB").Bytes("n", 1), uint64_t{2} << 30);
  EXPECT_EQ(WithText("1G").Bytes("n", 1), uint64_t{1} << 30);
  EXPECT_EQ(WithText("1.5KiB").Bytes("n", 1), 1536U);
  EXPECT_EQ(WithText("9223372036854775808").Bytes("n", 1), uint64_t{1} << 63);
  for (const std::string text : {"0", "0GiB", "", "-1", "2gib", "2 GiB", "GiB", "1.5", "9e3",
                                 "9223372036854775809", "16777216TiB"}) {
    EXPECT_EQ(RefusalOf(WithText(text).Bytes("n", 1)),
              "-n: '" + text + "' is not valid; give a size such as 2GiB, 512MiB, 1G or 65536");
  }
}

TEST(Args, FloatTakesANumberInItsRange) {
  const FloatRange range = {-0.5, 2};
  EXPECT_EQ(Args().Float("n", range, 7), 7.0F);
  EXPECT_EQ(WithText("2").Float("n", range, 0), 2.0F);
  EXPECT_EQ(WithText("-0.5").Float("n", range, 0), -0.5F);
  EXPECT_EQ(WithText("0.1").Float("n", range, 0), 0.1F);
  EXPECT_EQ(WithText(".5").Float("n", range, 0), 0.5F);
  EXPECT_EQ(WithText("1.").Float("n", range, 0), 1.0F);
  EXPECT_EQ(WithText("1e-1").Float("n", range, 0), 0.1F);
  EXPECT_EQ(WithText("1e400").Float("n", {0, 1e300}, 0).has_value(), false);
  for (const std::string text : {"2.0001", "-0.51", "", "nan", "inf", "-inf", "+1", " 1", "1 ",
                                 "1,5", "0x1", "1f", "one", "1e999", "1e-999"}) {
    EXPECT_EQ(RefusalOf(WithText(text).Float("n", range, 1)),
              "-n: '" + text + "' is not valid; give a number from -0.5 to 2");
  }
}

TEST(Args, OneOfTakesAChoiceInSmallLettersOrCapitals) {
  const std::array<std::string_view, 3> choices = {"f16", "q8_0", "int8"};
  EXPECT_EQ(Args().OneOf("n", choices, "int8"), "int8");
  EXPECT_EQ(WithText("f16").OneOf("n", choices, "int8"), "f16");
  EXPECT_EQ(WithText("Q8_0").OneOf("n", choices, "int8"), "q8_0");
  for (const std::string text : {"", "f", "f16 ", " f16", "f166", "f16,int8", "f32"}) {
    EXPECT_EQ(RefusalOf(WithText(text).OneOf("n", choices, "int8")),
              "-n: '" + text + "' is not valid; give f16, q8_0, int8");
  }
  // The default must be a choice too.
  EXPECT_EQ(RefusalOf(Args().OneOf("n", choices, "f32")),
            "-n: 'f32' is not valid; give f16, q8_0, int8");
}

TEST(Args, UintListTakesNumbersBetweenCommas) {
  using List = std::vector<uint64_t>;
  EXPECT_EQ(Args().UintList("n", 0, 9, {77}), List{77});
  EXPECT_EQ(WithText("5").UintList("n", 0, 9, {}), List{5});
  EXPECT_EQ(WithText("0,9,9,01").UintList("n", 0, 9, {}), (List{0, 9, 9, 1}));
  EXPECT_EQ(WithText(" 1 ,  2 ").UintList("n", 0, 9, {}), (List{1, 2}));
  const auto refused = [](size_t item, std::string_view text) {
    return fmt::format("-n: item {} is '{}'; give numbers from 1 to 9, separated by commas", item,
                       text);
  };
  const std::pair<std::string, std::string> wrong[] = {
      {"", refused(0, "")},           {" ", refused(0, "")},      {",", refused(0, "")},
      {"1,", refused(1, "")},         {"1,,2", refused(1, "")},   {"1,2,0", refused(2, "0")},
      {"10", refused(0, "10")},       {"1,-2", refused(1, "-2")}, {"1;2", refused(0, "1;2")},
      {" 1 2 ,3", refused(0, "1 2")}, {"1\n", refused(0, "1\n")}};
  for (const auto& [text, message] : wrong) {
    EXPECT_EQ(RefusalOf(WithText(text).UintList("n", 1, 9, {})), message);
  }
}

}  // namespace
}  // namespace kvasir::cli
