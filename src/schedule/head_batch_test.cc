#include "schedule/head_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "testing/small_runner_for_test.h"

namespace kvasir {
namespace {

class HeadBatchTest : public testing::Test {
 protected:
  static constexpr uint32_t kRows = 4;

  HeadBatchTest() : runner_(SmallRunnerOptions()), heads_(runner_, 16, kRows) {
    for (size_t i = 0; i < 16; ++i) hidden_[i][0] = static_cast<float>(i);
  }

  void Add(Request& request, uint32_t position, bool sample) {
    heads_.Add({.request = &request,
                .sequence = nullptr,
                .hidden = hidden_[position],
                .position = position,
                .sample = sample,
                .ends_prompt = false});
  }
  // Returns the sizes of the groups; checks their logits.
  std::vector<size_t> Groups() {
    std::vector<size_t> sizes;
    for (;;) {
      const auto group = heads_.ComputeNext();
      if (group.empty()) return sizes;
      sizes.push_back(group.size());
      for (size_t i = 0; i < group.size(); ++i) {
        std::vector<float> expected(kSmallVocab);
        const float* const hidden = group[i].hidden;
        runner_.Logits({&hidden, 1}, expected.data());
        EXPECT_TRUE(std::ranges::equal(heads_.logits(i), expected)) << group[i].position;
      }
    }
  }

  FakeRunner runner_;
  HeadBatch heads_;
  float hidden_[16][FakeRunner::kHidden] = {};
};

TEST_F(HeadBatchTest, ComputesAllRowsInGroups) {
  Request request;
  for (uint32_t i = 0; i < 10; ++i) Add(request, i, true);
  EXPECT_EQ(Groups(), (std::vector<size_t>{4, 4, 2}));
  heads_.Clear();
  EXPECT_EQ(Groups(), std::vector<size_t>());
}

TEST_F(HeadBatchTest, TheBeamsOfASearchAreInOneGroup) {
  Request other, searching;
  searching.answer.search = std::make_unique<BeamSearch>(BeamOptions{.beams = 3, .max_tokens = 4});
  for (uint32_t i = 0; i < 2; ++i) Add(other, i, true);
  for (uint32_t i = 2; i < 5; ++i) Add(searching, i, true);
  EXPECT_EQ(Groups(), (std::vector<size_t>{2, 3}));
}

TEST_F(HeadBatchTest, ZeroLeavesNothingOfEarlierSteps) {
  Request request;
  for (uint32_t i = 0; i < 3; ++i) Add(request, i, true);
  Groups();
  EXPECT_FALSE(std::ranges::all_of(heads_.logits(), [](float logit) { return logit == 0; }));
  heads_.Zero();
  EXPECT_TRUE(std::ranges::all_of(heads_.logits(), [](float logit) { return logit == 0; }));
  EXPECT_EQ(heads_.bytes(), HeadBatch::BytesFor(kSmallVocab, kRows));
}

}  // namespace
}  // namespace kvasir
