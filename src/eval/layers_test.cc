#include "eval/layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace kvasir::eval {
namespace {

// A model whose cost is the sum of its layers' costs in the vector.
class Additive {
 public:
  explicit Additive(std::vector<double> costs) : costs_(std::move(costs)) {}
  Measured Of(const KvChoice& choice) const {
    Measured measured;
    measured.choice = choice;
    for (size_t layer = 0; layer < costs_.size(); ++layer) {
      const bool skipped = std::ranges::count(choice.skip_layers, layer) > 0;
      measured.quality.kl.value += skipped ? 0 : costs_[layer];
    }
    return measured;
  }
  LayerStudy Study(double max_kl) {
    const auto study =
        StudyLayers(Of({"int4", {}}), static_cast<uint32_t>(costs_.size()), max_kl,
                    [this](std::span<const KvChoice> choices) -> Result<std::vector<Measured>> {
                      runs_ += choices.size();
                      std::vector<Measured> all;
                      for (const KvChoice& choice : choices) all.push_back(Of(choice));
                      return all;
                    });
    EXPECT_TRUE(study);
    return *study;
  }
  size_t runs() const { return runs_; }

 private:
  std::vector<double> costs_;
  size_t runs_ = 0;
};

TEST(EvalLayers, EachLayerIsMeasuredAlone) {
  const LayerStudy study = Additive({3, 1, 2}).Study(100);
  ASSERT_EQ(study.costs.size(), 3u);
  EXPECT_EQ(study.costs[0].kl.value, 3);
  EXPECT_EQ(study.costs[1].kl.value, 1);
  EXPECT_EQ(study.costs[2].kl.value, 2);
}

TEST(EvalLayers, AFormatWithinTheBoundNeedsNoList) {
  const LayerStudy study = Additive({3, 1, 2}).Study(6);
  ASSERT_TRUE(study.skip_layers);
  EXPECT_TRUE(study.skip_layers->empty());
  EXPECT_FALSE(study.verified);
}

TEST(EvalLayers, TheListIsTheShortestOfTheDearestLayersAndIsVerified) {
  const LayerStudy study = Additive({1, 8, 2, 9, 1, 1}).Study(5.5);
  ASSERT_TRUE(study.skip_layers && study.verified);
  EXPECT_EQ(*study.skip_layers, (std::vector<uint32_t>{1, 3}));
  EXPECT_EQ(study.verified->quality.kl.value, 5);
  EXPECT_EQ(study.verified->choice.skip_layers, *study.skip_layers);
}

TEST(EvalLayers, ABoundThatOnlyAllLayersMeetHasNoList) {
  const LayerStudy study = Additive({1, 1, 1, 1}).Study(0.5);
  EXPECT_FALSE(study.skip_layers);
  EXPECT_FALSE(study.verified);
  EXPECT_EQ(study.costs.size(), 4u);
}

TEST(EvalLayers, TheSearchHalves) {
  for (uint32_t needed = 1; needed < 32; ++needed) {
    Additive model(std::vector<double>(32, 1.0));
    const LayerStudy study = model.Study(32 - needed);
    ASSERT_TRUE(study.skip_layers);
    EXPECT_EQ(study.skip_layers->size(), needed);
    EXPECT_LE(model.runs(), 32u + 5);
  }
}

}  // namespace
}  // namespace kvasir::eval
