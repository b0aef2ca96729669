#include "eval/measure.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "text/tokenizer.h"

namespace kvasir::eval {
namespace {

TEST(EvalWords, AreWholeAndExact) {
  EXPECT_TRUE(HasWords("It is in the golden barrel.", "golden barrel"));
  EXPECT_TRUE(HasWords("golden barrel", "golden barrel"));
  EXPECT_TRUE(HasWords("barrels, barrel", "barrel"));
  EXPECT_FALSE(HasWords("golden barrels", "golden barrel"));
  EXPECT_FALSE(HasWords("The code is 47110.", "4711"));
  EXPECT_FALSE(HasWords("Golden Barrel", "golden barrel"));
  EXPECT_FALSE(HasWords("a_1", "1"));
  EXPECT_FALSE(HasWords("é1", "1"));  // a letter of two bytes
  EXPECT_TRUE(HasWords("…1…", "1"));
  EXPECT_FALSE(HasWords("", "1"));
}

// Makes windows that begin alike: the cached rows of one must not be used for the next.
EvalText TextFor(const Engine& engine) {
  EvalText text;
  const std::string start = "Anna lives in Oslo. The code of the green safe is 4711. ";
  for (const char* end : {"Where does Anna live? In Oslo.", "What is the code of it? 4711.", ""}) {
    std::string words;
    for (int i = 0; i < 6; ++i) words += start;
    text.windows.push_back(*engine.tokenizer()->Encode(words + end));
  }
  return text;
}

Measured Int8With(uint64_t rows_bytes) {
  ComparisonOptions options;
  options.engine.ctx_size = 256;
  options.engine.image_cap_bytes = 0;
  options.rows_bytes = rows_bytes;
  const auto comparison = Comparison::Create(options);
  EXPECT_TRUE(comparison);
  const EvalText text = TextFor((*comparison)->reference());
  const KvChoice choice{"int8", {}};
  auto measured = (*comparison)->Measure(std::span(&choice, 1), text, {});
  EXPECT_TRUE(measured);
  EXPECT_EQ(measured->front().quality.tokens, text.scored_tokens());
  return std::move(measured->front());
}

TEST(EvalComparison, ChunksChangeNoFigure) {
  const Measured whole = Int8With(uint64_t{64} << 20);
  EXPECT_GT(whole.quality.kl.value, 0);
  for (const uint64_t rows : {1, 17, 100}) {
    const Measured parts = Int8With(rows * 1024 * sizeof(float));
    EXPECT_EQ(parts.quality.kl.value, whole.quality.kl.value) << rows;
    EXPECT_EQ(parts.quality.kl_max, whole.quality.kl_max);
    EXPECT_EQ(parts.quality.same_top.value, whole.quality.same_top.value);
    EXPECT_EQ(parts.quality.perplexity.value, whole.quality.perplexity.value);
  }
}

TEST(EvalComparison, ProbesWaitAsLongAsTheyMust) {
  ComparisonOptions options;
  options.engine.ctx_size = 256;
  options.engine.image_cap_bytes = 0;
  options.engine.parallel = 1;
  options.engine.max_queue_ms = 1;
  const auto comparison = Comparison::Create(options);
  ASSERT_TRUE(comparison);
  const std::vector<Probe> probes(
      12, {.kind = "probe",
           .where = "here:1",
           .messages = {{.role = "user", .content = "My name is Mira. What is my name?"}},
           .expect = "Mira",
           .answer = ""});
  for (int i = 0; i < 2; ++i) {  // at the second time the engine knows what a probe takes
    const auto answers = (*comparison)->AnswerReference(probes);
    ASSERT_TRUE(answers) << answers.error().text();
    EXPECT_EQ(answers->size(), probes.size());
  }
}

// Like a large model: the first load makes an image, and all later engines share it.
TEST(EvalComparison, EnginesOfAnImageAreMeasuredTogether) {
  const std::string folder = testing::TempDir() + "/eval_image";
  std::filesystem::remove_all(folder);
  ComparisonOptions options;
  options.engine.ctx_size = 256;
  options.engine.cache_dir = folder;
  options.small_weights_bytes = 0;
  std::vector<std::string> said;
  options.say = [&said](const std::string& line) { said.push_back(line); };
  const auto comparison = Comparison::Create(options);
  ASSERT_TRUE(comparison);
  EXPECT_TRUE((*comparison)->reference().card().weights_shared);
  const EvalText text = TextFor((*comparison)->reference());
  const std::vector<KvChoice> choices = {{"f16", {}}, {"int8", {}}};
  const auto measured = (*comparison)->Measure(choices, text, {});
  ASSERT_TRUE(measured);
  ASSERT_FALSE(said.empty());
  EXPECT_TRUE(said.front().starts_with("f16; int8: 0 of")) << said.front();
  const Measured alone = Int8With(uint64_t{64} << 20);
  EXPECT_EQ(measured->back().quality.kl.value, alone.quality.kl.value);
  std::filesystem::remove_all(folder);

  options.engine.image_cap_bytes = 0;
  const auto packed = Comparison::Create(options);
  ASSERT_TRUE(packed);
  EXPECT_FALSE((*packed)->reference().card().weights_shared);
  said.clear();
  ASSERT_TRUE((*packed)->Measure(choices, text, {}));
  EXPECT_TRUE(said.front().starts_with("f16: 0 of")) << said.front();
}

}  // namespace
}  // namespace kvasir::eval
