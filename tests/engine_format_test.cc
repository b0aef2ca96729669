// Answers that have a format: what they are, what they cost, and that nothing else changes them.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "chat/answer_format.h"
#include "engine_scenario.h"
#include "grammar/grammar_text.h"
#include "grammar/matcher.h"
#include "kvasir/sampling_ranges.h"
#include "text/tokenizer.h"

namespace kvasir {
namespace {

constexpr const char* kSchema = R"({"type":"object","properties":{"city":{"type":"string"},
    "days":{"type":"integer","minimum":1,"maximum":40},"tags":{"type":"array","items":
    {"enum":["a","b"]},"maxItems":4}},"required":["city","days"]})";

const AnswerFormat::Text kTexts[] = {
    {FormatLanguage::kJsonSchema, kSchema, "json_schema"},
    {FormatLanguage::kRegularExpression, "[A-Z][a-z]{2,8}( [a-z]{1,9}){0,3}\\.", "guided_regex"},
    {FormatLanguage::kTexts, R"(["Oslo","Rome","a place that I do not know"])", "guided_choice"},
    {FormatLanguage::kGbnf, "root ::= item (\", \" item)* \".\"\nitem ::= [a-z]{1,6} | \"ü\"",
     "grammar"}};

GenerateRequest Asks(const Engine& engine, const AnswerFormat::Text& text, float temperature,
                     uint64_t seed) {
  GenerateRequest request =
      Greedy(engine.tokenizer()->Encode("Where does Anna live? ").value(), 60);
  request.sampling.temperature = temperature;
  request.sampling.seed = seed;
  request.format.emplace();
  request.format->text = text;
  return request;
}

TEST(EngineFormat, AnswersAreTextsOfTheFormat) {
  const auto engine = LoadEngine(DemoOptions());
  int whole = 0;
  for (const AnswerFormat::Text& text : kTexts) {
    const auto grammar = CompileGrammarText(text.language, text.text);
    ASSERT_TRUE(grammar.has_value());
    for (uint64_t seed = 0; seed < 12; ++seed) {
      GenerateRequest request = Asks(*engine, text, seed == 0 ? 0.0f : 1.0f, seed);
      request.n = 3;
      request.ignore_eos = seed % 2 == 0;
      for (const Answer::Choice& choice : Ask(*engine, std::move(request)).choices) {
        Matcher matcher(*grammar);
        EXPECT_TRUE(matcher.Advance(choice.text)) << choice.text;
        if (choice.finish_reason == FinishReason::kLength) continue;
        EXPECT_EQ(choice.finish_reason, FinishReason::kStop);
        EXPECT_TRUE(matcher.Accepts()) << choice.text;
        ++whole;
      }
    }
  }
  EXPECT_GT(whole, 100);
  EXPECT_GT(engine->GrammarBytes(), 0u);
  EXPECT_LE(engine->GrammarBytes(), engine->plan().grammar_bytes);
}

TEST(EngineFormat, TheLegalTokenOfTheLargestLogitIsGreedy) {
  const auto engine = LoadEngine(DemoOptions());
  for (const AnswerFormat::Text& text : kTexts) {
    GenerateRequest masked = Asks(*engine, text, 1, 5);
    masked.sampling.top_k = 1;  // the mask is computed at each token
    const Answer greedy = Ask(*engine, Asks(*engine, text, 0, 5));
    EXPECT_EQ(Ask(*engine, std::move(masked)).choices[0].tokens, greedy.choices[0].tokens);
  }
}

TEST(EngineFormat, ASeedGivesItsTextWhateverElseRuns) {
  const auto engine = LoadEngine(DemoOptions());
  std::vector<Answer> alone;
  const auto ask = [&](size_t i) { return Asks(*engine, kTexts[i % 4], 1, 100 + i); };
  for (size_t i = 0; i < 8; ++i) alone.push_back(Ask(*engine, ask(i)));
  std::vector<std::unique_ptr<Pending>> batch;
  for (size_t i = 0; i < 8; ++i) batch.push_back(std::make_unique<Pending>(*engine, ask(i)));
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(batch[i]->Wait().choices[0].tokens, alone[i].choices[0].tokens) << i;
  }
}

TEST(EngineFormat, LogprobsAreThoseOfTheModel) {
  const auto engine = LoadEngine(DemoOptions());
  GenerateRequest request = Asks(*engine, kTexts[2], 0, 1);
  request.logprobs = 2;
  const Answer answer = Ask(*engine, std::move(request));
  request = Asks(*engine, kTexts[2], 0, 1);
  request.format.reset();
  request.logprobs = 2;
  const Answer free = Ask(*engine, std::move(request));
  const GeneratedToken& one = answer.choices[0].pieces[0];
  const GeneratedToken& other = free.choices[0].pieces[0];
  EXPECT_NE(one.id, other.id);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(one.top[i].id, other.top[i].id);
    EXPECT_EQ(one.top[i].logprob, other.top[i].logprob);
  }
}

TEST(EngineFormat, AThoughtEndsAfterItsTokens) {
  const auto engine = LoadEngine(DemoOptions());
  for (const uint32_t most : {0u, 1u, 7u}) {
    GenerateRequest request = Asks(*engine, kTexts[2], 0, 1);
    request.format->think = FindThinkMarks("</think>");
    request.format->begins_inside_thought = true;
    request.format->max_thought_tokens = most;
    const Answer answer = Ask(*engine, std::move(request));
    const std::string& text = answer.choices[0].text;
    const size_t end = text.find("</think>");
    ASSERT_NE(end, text.npos) << text;
    std::string thought;
    for (uint32_t i = 0; i < most; ++i) thought += answer.choices[0].pieces[i].text;
    EXPECT_EQ(text.substr(0, end), thought);
    EXPECT_EQ(answer.choices[0].finish_reason, FinishReason::kStop);
  }
  // Without a limit it may think as long as there is room, and nothing else.
  GenerateRequest request = Asks(*engine, kTexts[2], 0, 1);
  request.format->think = FindThinkMarks("</think>");
  request.format->begins_inside_thought = true;
  const Answer answer = Ask(*engine, std::move(request));
  EXPECT_EQ(answer.choices[0].finish_reason, FinishReason::kLength);
  // A limit alone: what follows is free.
  request = Asks(*engine, kTexts[2], 0, 1);
  request.format->text.reset();
  request.format->think = FindThinkMarks("</think>");
  request.format->begins_inside_thought = true;
  request.format->max_thought_tokens = 2;
  EXPECT_NE(Ask(*engine, std::move(request)).choices[0].text.find("</think>"), std::string::npos);
}

// A mark that is several tokens, and that the model writes: a bias makes it begin with one.
TEST(EngineFormat, AThoughtThatTheModelOpensEndsToo) {
  const auto engine = LoadEngine(DemoOptions());
  const TokenId mark = engine->tokenizer()->Encode("<", {.add_special = false}).value().front();
  for (const uint32_t most : {0u, 1u}) {
    GenerateRequest request = Asks(*engine, kTexts[2], 0, 1);
    request.format->think = FindThinkMarks("</think>");
    request.format->max_thought_tokens = most;
    request.sampling.logit_bias = {{mark, 100.0f}};
    const Answer answer = Ask(*engine, std::move(request));
    EXPECT_TRUE(answer.choices[0].text.starts_with("<think></think>")) << answer.choices[0].text;
    EXPECT_EQ(answer.choices[0].finish_reason, FinishReason::kStop);
  }
}

TEST(EngineFormat, WhatCannotBeIsRefusedByItsField) {
  const auto engine = LoadEngine(DemoOptions());
  const auto refused = [&](const AnswerFormat::Text& text) {
    Pending pending(*engine, Asks(*engine, text, 0, 1));
    EXPECT_TRUE(pending.refused());
    return pending.refused().value_or(Error{});
  };
  EXPECT_EQ(refused({FormatLanguage::kGbnf, "root ::= root", "grammar"}).field, "grammar");
  EXPECT_EQ(refused({FormatLanguage::kJsonSchema, "{", "json_schema"}).code,
            Code::kInvalidArgument);
  EXPECT_EQ(refused({FormatLanguage::kTexts, "[\"\"]", "guided_choice"}).field, "guided_choice");
  EngineOptions options = DemoOptions();
  options.grammar_memory_bytes = 0;
  const auto without = LoadEngine(options);
  Pending pending(*without, Asks(*without, kTexts[0], 0, 1));
  ASSERT_TRUE(pending.refused());
  EXPECT_EQ(pending.refused()->code, Code::kUnsupported);
  EXPECT_NE(pending.refused()->message.find("--grammar-memory"), std::string::npos);
  EXPECT_EQ(without->GrammarBytes(), 0u);
}

// Ways to read the answer become too many: it ends with an error, and nothing else does.
TEST(EngineFormat, AnAmbiguousGrammarEndsItsOwnAnswer) {
  const auto engine = LoadEngine(DemoOptions());
  for (const float temperature : {0.0f, 1.0f}) {
    const AnswerFormat::Text text = {FormatLanguage::kGbnf,
                                     R"(root ::= "a" root root | "a" root | "a")", "grammar"};
    GenerateRequest request = Asks(*engine, text, temperature, 1);
    request.max_tokens = 1500;
    request.ignore_eos = true;
    Pending hostile(*engine, std::move(request));
    Pending beside(*engine, Asks(*engine, kTexts[0], 1, 3));
    EXPECT_FALSE(beside.Wait().error);
    const Answer& answer = hostile.Wait();
    ASSERT_TRUE(answer.error);
    EXPECT_EQ(answer.error->code, Code::kUnsupported);
    const std::string& why = answer.error->message;
    EXPECT_NE(why.find("no token can continue the answer"), std::string::npos) << why;
    EXPECT_NE(why.find("more than 512 places"), std::string::npos) << why;
    EXPECT_GT(answer.choices[0].tokens.size(), 100u);
  }
}

TEST(EngineFormat, BiasesThatForbidAllLegalTokensEndTheAnswerWithAnError) {
  const auto engine = LoadEngine(DemoOptions());
  for (const float temperature : {0.0f, 1.0f}) {
    GenerateRequest request =
        Asks(*engine, {FormatLanguage::kTexts, R"(["7"])", "guided_choice"}, temperature, 1);
    const auto ids = engine->tokenizer()->Encode("7", {.add_special = false}).value();
    for (const TokenId id : ids) {
      request.sampling.logit_bias.emplace_back(id, kForbidden);
    }
    const Answer answer = Ask(*engine, std::move(request));
    ASSERT_TRUE(answer.error);
    EXPECT_EQ(answer.error->code, Code::kUnsupported);
    EXPECT_TRUE(answer.choices[0].tokens.empty());
  }
}

TEST(EngineFormat, GrammarsAndMasksStayWithinTheirMemory) {
  EngineOptions options = DemoOptions();
  options.grammar_memory_bytes = 400'000;
  const auto engine = LoadEngine(options);
  for (int i = 0; i < 60; ++i) {
    const AnswerFormat::Text text = {
        FormatLanguage::kRegularExpression,
        "[a-z ]{" + std::to_string(i % 9 + 1) + "," + std::to_string(i + 40) + "}!", "regex"};
    const Answer answer = Ask(*engine, Asks(*engine, text, 1, static_cast<uint64_t>(i)));
    EXPECT_FALSE(answer.error);
    EXPECT_LE(engine->GrammarBytes(), options.grammar_memory_bytes);
  }
}

}  // namespace
}  // namespace kvasir
