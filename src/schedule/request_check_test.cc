#include "schedule/request_check.h"

#include <gtest/gtest.h>

#include <functional>

namespace kvasir {
namespace {

const KvLayout kLayout(BlockLayout(BlockShape{.block_tokens = 16,
                                              .num_layers = 1,
                                              .kv_heads = 1,
                                              .head_dim = 16,
                                              .k_format = {KvFormat::kF16},
                                              .v_format = {KvFormat::kF16}}));

RequestLimits Limits(CacheMode mode) {
  return {.ctx_size = 8192,
          .max_positions = 8192,
          .vocab_size = 100,
          .parallel = 4,
          .num_blocks = 400,
          .layout = &kLayout,
          .step_tokens = 512,
          .cache_mode = mode};
}

GenerateRequest PromptOf(uint32_t tokens) {
  GenerateRequest request;
  request.prompt.assign(tokens, 5);
  return request;
}

TEST(CheckRequest, ClipsMaxTokensToContextAndPool) {
  RequestLimits limits = Limits(CacheMode::kPrefix);
  // The last token needs a position, but no room in a block.
  EXPECT_EQ((*CheckRequest(PromptOf(100), {}, limits))->max_tokens, 400u * 16 + 1 - 100);
  limits.num_blocks = 4000;
  EXPECT_EQ((*CheckRequest(PromptOf(100), {}, limits))->max_tokens, 8192u - 100);
  GenerateRequest few = PromptOf(100);
  few.max_tokens = 7;
  EXPECT_EQ((*CheckRequest(few, {}, limits))->max_tokens, 7u);
}

TEST(CheckRequest, ChoicesShareThePromptsWholeBlocksOnly) {
  GenerateRequest request = PromptOf(100);  // six whole blocks and a tail
  request.n = 3;
  request.max_tokens = 30;  // 129 tokens are computed: nine blocks
  const auto checked = CheckRequest(request, {}, Limits(CacheMode::kPrefix));
  ASSERT_TRUE(checked) << checked.error().message;
  EXPECT_EQ((*checked)->room.demand.tokens, 129u);
  EXPECT_EQ((*checked)->room.demand.blocks(kLayout, 512), 6u + 3 * 3);
  // Without a cache each choice computes the prompt again, in separate blocks.
  const auto alone = CheckRequest(request, {}, Limits(CacheMode::kNone));
  EXPECT_EQ((*alone)->room.demand.blocks(kLayout, 512), 3u * 9);
}

TEST(CheckRequest, WithoutACacheMoreThan4096TokensAreRefusedWithTheFix) {
  const RequestLimits limits = Limits(CacheMode::kNone);
  EXPECT_EQ((*CheckRequest(PromptOf(4095), {}, limits))->max_tokens, 1u);
  const auto refused = CheckRequest(PromptOf(4096), {}, limits);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("--cache prefix"), std::string::npos);
  EXPECT_TRUE(CheckRequest(PromptOf(4096), {}, Limits(CacheMode::kPrefix)));
}

TEST(CheckRequest, ALargerContextIsTheFixOnlyWhereTheModelHasIt) {
  RequestLimits limits = Limits(CacheMode::kPrefix);
  limits.max_positions = 2048;
  const auto fix_of = [&limits](uint32_t prompt) {
    const auto refused = CheckRequest(PromptOf(prompt), {}, limits);
    const std::string text = refused ? "passes" : refused.error().message;
    return text.substr(text.rfind(": ") + 2);
  };
  limits.ctx_size = 100;
  EXPECT_EQ(fix_of(100),
            "shorten the prompt, or raise --ctx-size; with --retention and --exact-tokens "
            "(cache.retention) it may be longer");
  limits.no_retention = "a model that keeps all";
  EXPECT_EQ(fix_of(100), "shorten the prompt, or raise --ctx-size");
  EXPECT_EQ(fix_of(2047), "shorten the prompt, or raise --ctx-size");
  EXPECT_EQ(fix_of(2048), "shorten the prompt; the model was trained for at most 2048");
  limits.ctx_size = 2048;
  EXPECT_EQ(fix_of(2048), "shorten the prompt; the model was trained for no longer context");
}

TEST(CheckRequest, APromptThatThePoolCannotHoldIsRefusedWithTheFix) {
  RequestLimits limits = Limits(CacheMode::kPrefix);
  limits.num_blocks = 8;
  EXPECT_TRUE(CheckRequest(PromptOf(128), {}, limits));
  const auto refused = CheckRequest(PromptOf(129), {}, limits);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("--kv-memory"), std::string::npos);
}

GenerateRequest RetainedOf(uint32_t tokens, RetentionChoice choice) {
  GenerateRequest request = PromptOf(tokens);
  request.retention = choice;
  return request;
}

TEST(CheckRequest, AnAnswerThatDropsTokensHasAContextOfThemOrAsManyAsWereAskedFor) {
  const RequestLimits limits = Limits(CacheMode::kPrefix);
  const RetentionChoice window{.policy = Retention::kWindow, .budget = 64};
  GenerateRequest request = RetainedOf(100, window);
  EXPECT_EQ((*CheckRequest(request, {}, limits))->max_tokens, limits.ctx_size);
  request.max_tokens = 500'000;
  EXPECT_EQ((*CheckRequest(request, {}, limits))->max_tokens, 500'000u);
  request.max_tokens = UINT32_MAX - 1;
  EXPECT_EQ((*CheckRequest(request, {}, limits))->max_tokens, kMaxRetainedTokens - 100);
}

TEST(CheckRequest, APromptThatDropsTokensPassesTheContextUpToALimit) {
  const RequestLimits limits = Limits(CacheMode::kPrefix);
  RetentionChoice window{.policy = Retention::kWindow, .budget = 64, .exact_tokens = 64};
  const auto last = CheckRequest(RetainedOf(kMaxRetainedTokens - 1, window), {}, limits);
  ASSERT_TRUE(last) << last.error().text();
  EXPECT_EQ((*last)->max_tokens, 1u);
  const auto longer = CheckRequest(RetainedOf(kMaxRetainedTokens, window), {}, limits);
  ASSERT_FALSE(longer);
  EXPECT_EQ(longer.error().text(),
            "prompt: 1048576 tokens and 1 to generate do not fit a sequence, which has at most "
            "1048576: shorten the prompt");
  window.exact_tokens.reset();  // all of the prompt is exact
  const auto exact = CheckRequest(RetainedOf(limits.ctx_size, window), {}, limits);
  ASSERT_FALSE(exact);
  EXPECT_NE(exact.error().text().find("the context of 8192"), std::string::npos);
}

TEST(CheckRequest, WhereNoBudgetFitsThePolicysLeastIsNamed) {
  RequestLimits limits = Limits(CacheMode::kPrefix);
  limits.num_blocks = 6;
  for (const auto& [policy, least] : {std::pair{Retention::kWindow, "the least, 16 tokens,"},
                                      {Retention::kHeavy, "the least, 64 tokens,"}}) {
    const auto refused =
        CheckRequest(RetainedOf(20, {.policy = policy, .budget = 512}), {}, limits);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().field, "cache.retention.budget");
    EXPECT_NE(refused.error().message.find(least), std::string::npos) << refused.error().text();
  }
}

TEST(CheckRequest, AnErrorNamesItsField) {
  const auto error_of = [](const std::function<void(GenerateRequest&)>& change) {
    GenerateRequest request = PromptOf(3);
    change(request);
    const auto refused = CheckRequest(request, {}, Limits(CacheMode::kPrefix));
    return refused ? Error{Code::kCancelled, "passes"} : refused.error();
  };
  EXPECT_EQ(error_of([](GenerateRequest& r) { r.prompt.clear(); }).field, "prompt");
  EXPECT_EQ(error_of([](GenerateRequest& r) { r.n = 5; }).field, "n");
  EXPECT_EQ(error_of([](GenerateRequest& r) { r.logprobs = 21; }).field, "top_logprobs");
  EXPECT_EQ(error_of([](GenerateRequest& r) { r.sampling.top_p = 2; }).text(),
            "top_p: 2 is not in [0, 1]");
  const Error second = error_of([](GenerateRequest& r) { r.prompt[1] = 100; });
  EXPECT_EQ(second.field, "prompt");
  EXPECT_EQ(second.index, 1u);
  EXPECT_EQ(second.text(), "prompt[1]: token 100 is outside the vocabulary [0, 100)");
  const Error stop = error_of([](GenerateRequest& r) { r.stop_ids = {-1}; });
  EXPECT_EQ(stop.text(), "stop_ids[0]: token -1 is outside the vocabulary [0, 100)");
}

TEST(CheckRequest, StopStringsNeedATokenizer) {
  GenerateRequest request = PromptOf(3);
  request.stop = {"end"};
  RequestLimits limits = Limits(CacheMode::kPrefix);
  limits.no_text = "m.gguf: kind 'x'";
  const auto refused = CheckRequest(request, {}, limits);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().text(), "stop: m.gguf: kind 'x', or use stop ids instead of strings");
}

}  // namespace
}  // namespace kvasir
