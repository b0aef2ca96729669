#include "cli/eval_measure.h"

#include <gtest/gtest.h>

#include "text/tokenizer.h"

namespace kvasir::cli {
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

// Windows of the bundled model that begin alike: what one leaves in the cache must not answer rows
// of the next.
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

TEST(EvalComparison, SegmentsChangeNoFigure) {
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

}  // namespace
}  // namespace kvasir::cli
