#include "kvasir/request_bytes.h"

#include <gtest/gtest.h>

#include <string>

namespace kvasir {
namespace {

// Returns how many bytes more a request has after `change`.
template <typename Change>
uint64_t AddedBy(Change change) {
  GenerateRequest request;
  const uint64_t before = AllocatedBytes(request);
  change(request);
  return AllocatedBytes(request) - before;
}

TEST(RequestBytes, CountsEachTextAndList) {
  constexpr size_t kMany = 10'000;
  const std::string text(kMany, 'a');
  EXPECT_GE(AddedBy([&](auto& r) { r.tenant = text; }), kMany - 15);
  EXPECT_GE(AddedBy([&](auto& r) { r.cache_owner = text; }), kMany);
  EXPECT_GE(AddedBy([&](auto& r) { r.cache_salt = text; }), kMany);
  EXPECT_GE(AddedBy([&](auto& r) { r.id = text; }), kMany);
  EXPECT_GE(AddedBy([&](auto& r) { r.source.resize(kMany); }), kMany * sizeof(TokenId));
  EXPECT_GE(AddedBy([&](auto& r) { r.prompt.resize(kMany); }), kMany * sizeof(TokenId));
  EXPECT_GE(AddedBy([&](auto& r) { r.prediction.resize(kMany); }), kMany * sizeof(TokenId));
  EXPECT_GE(AddedBy([&](auto& r) { r.replayed.resize(kMany); }), kMany * sizeof(TokenId));
  EXPECT_GE(AddedBy([&](auto& r) { r.message_ends.resize(kMany); }), kMany * sizeof(uint32_t));
  EXPECT_GE(AddedBy([&](auto& r) { r.stop_ids.resize(kMany); }), kMany * sizeof(TokenId));
  EXPECT_GE(AddedBy([&](auto& r) { r.shown_special.resize(kMany); }), kMany * sizeof(TokenId));
  EXPECT_GE(AddedBy([&](auto& r) { r.sampling.logit_bias.resize(kMany); }),
            kMany * sizeof(std::pair<TokenId, float>));
  EXPECT_GE(AddedBy([&](auto& r) { r.stop = {text, text}; }), 2 * (kMany + sizeof(text)));
  EXPECT_GE(AddedBy([&](auto& r) { r.ignored = {text}; }), kMany + sizeof(text));
}

TEST(RequestBytes, CountsAFormatsTextAndTools) {
  const std::string text(10'000, 'a');
  AnswerFormat format;
  format.text = {.language = FormatLanguage::kGbnf, .text = text, .field = "grammar"};
  format.tools.push_back({.name = text, .parameters = text});
  EXPECT_GE(AddedBy([&](auto& r) { r.format = format; }),
            3 * text.size() + sizeof(AnswerFormat::Tool));
}

TEST(RequestBytes, AreNotOfNumbersAndClosures) {
  EXPECT_EQ(AddedBy([](auto& r) {
              r.max_tokens = 5;
              r.beams = BeamParams();
              r.timeout_ms = 9;
              r.on_trace = [](RequestTrace) {};
            }),
            0u);
}

}  // namespace
}  // namespace kvasir
