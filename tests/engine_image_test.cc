// Model images through an engine: the second start maps what the first has packed, a damaged image
// is reported and made again, and no answer changes.
#include <algorithm>
#include <fstream>

#include "engine_scenario.h"
#include "import/tiny_models_for_test.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

struct Start {
  std::unique_ptr<Engine> engine;
  std::vector<std::string> warnings;
  bool packed = false;  // rather than mapped
};

class EngineImages : public testing::Test {
 protected:
  EngineImages() {
    static int serial = 0;
    options_ = DemoOptions();
    folder_ = ScratchDir() / ("images-" + std::to_string(++serial));
    options_.cache_dir = folder_ / "cache";
    options_.state_dir = folder_ / "state";
  }

  Start StartEngine(const EngineOptions& options) {
    Start start;
    EngineOptions with = options;
    with.warn = [&](const std::string& text) { start.warnings.push_back(text); };
    with.progress = [&](const char* phase, double) {
      start.packed |= std::string_view(phase) == "weights";
    };
    start.engine = LoadEngine(with);
    const MemoryPlan plan = *Engine::PlanMemory(options);
    EXPECT_EQ(start.engine->plan().weights_bytes, plan.weights_bytes);
    EXPECT_EQ(start.engine->plan().total_bytes, plan.total_bytes);
    return start;
  }
  std::vector<ImageEntry> Images() const { return ListImages(options_.cache_dir); }

  // Returns the logits of a short prompt and the tokens that follow.
  static std::pair<std::vector<float>, std::vector<TokenId>> Answers(Engine& engine) {
    std::vector<float> logits;
    GenerateRequest request = Greedy({5, 17, 40, 33, 7}, 12);
    request.ignore_eos = true;
    request.on_logits = [&](uint32_t, uint32_t, std::span<const float> row) {
      logits.insert(logits.end(), row.begin(), row.end());
    };
    const Generation generation = *Generate(engine, std::move(request));
    return {std::move(logits), generation.tokens};
  }

  EngineOptions options_;
  fs::path folder_;
};

TEST_F(EngineImages, TheSecondStartMapsWhatTheFirstPacked) {
  const Start first = StartEngine(options_);
  EXPECT_TRUE(first.packed);
  ASSERT_EQ(Images().size(), 1u);
  EXPECT_EQ(Images()[0].model, "kvasir-demo");
  const Start second = StartEngine(options_);
  EXPECT_FALSE(second.packed);
  EXPECT_TRUE(first.warnings.empty() && second.warnings.empty());
  EXPECT_EQ(Answers(*first.engine), Answers(*second.engine));
  EXPECT_EQ(Images().size(), 1u);
}

TEST_F(EngineImages, ADamagedOrCutImageIsToldAndMadeAgain) {
  const auto want = Answers(*StartEngine(options_).engine);
  const fs::path path = Images().at(0).path;
  const uint64_t whole_bytes = fs::file_size(path);
  const auto flip = [&] {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(whole_bytes / 2));
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(whole_bytes / 2));
    file.put(byte);
  };
  const auto cut = [&] { fs::resize_file(path, whole_bytes - 1); };
  const auto empty = [&] { fs::resize_file(path, 0); };
  for (const auto& damage : std::vector<std::function<void()>>{flip, cut, empty}) {
    damage();
    const Start again = StartEngine(options_);
    EXPECT_TRUE(again.packed);
    ASSERT_EQ(again.warnings.size(), 1u);
    EXPECT_NE(again.warnings[0].find("damaged"), std::string::npos) << again.warnings[0];
    EXPECT_NE(again.warnings[0].find(path.string()), std::string::npos) << again.warnings[0];
    EXPECT_EQ(Answers(*again.engine), want);
    EXPECT_EQ(fs::file_size(path), whole_bytes);
    EXPECT_FALSE(StartEngine(options_).packed);
  }
}

TEST_F(EngineImages, OneOfAnotherVersionIsToldAndMadeAgain) {
  StartEngine(options_);
  const fs::path path = Images().at(0).path;
  {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(8);
    file.put(0);  // version 0
  }
  const Start again = StartEngine(options_);
  EXPECT_TRUE(again.packed);
  ASSERT_EQ(again.warnings.size(), 1u);
  EXPECT_NE(again.warnings[0].find("another version"), std::string::npos) << again.warnings[0];
  EXPECT_EQ(again.warnings[0].find("damaged"), std::string::npos) << again.warnings[0];
  EXPECT_FALSE(StartEngine(options_).packed);
}

TEST_F(EngineImages, NoneWithoutASecretThatLastsOrWithACapOfZero) {
  EngineOptions options = options_;
  options.image_cap_bytes = 0;
  EXPECT_TRUE(StartEngine(options).packed);
  EXPECT_TRUE(Images().empty());
  options = options_;
  fs::create_directories(folder_);
  std::ofstream(folder_ / "no-folder") << "a file";
  options.state_dir = folder_ / "no-folder";
  EXPECT_TRUE(StartEngine(options).packed);
  EXPECT_TRUE(Images().empty());
}

TEST_F(EngineImages, OneThatDoesNotFitTheCapIsToldAndTheEngineStarts) {
  EngineOptions options = options_;
  options.image_cap_bytes = 100'000;
  const Start start = StartEngine(options);
  ASSERT_EQ(start.warnings.size(), 1u);
  EXPECT_NE(start.warnings[0].find("limit of 100000"), std::string::npos) << start.warnings[0];
  EXPECT_TRUE(Images().empty());
}

TEST_F(EngineImages, AnotherSecretTrustsNoneOfThem) {
  StartEngine(options_);
  fs::remove(folder_ / "state" / "secret");
  const Start start = StartEngine(options_);
  EXPECT_TRUE(start.packed);
  EXPECT_EQ(start.warnings.size(), 1u);
}

TEST_F(EngineImages, EachChoiceOfWeightsHasItsOwn) {
  StartEngine(options_);
  EngineOptions options = options_;
  options.weights = "i8";
  EXPECT_TRUE(StartEngine(options).packed);
  EXPECT_FALSE(StartEngine(options).packed);
  EXPECT_FALSE(StartEngine(options_).packed);
  EXPECT_EQ(Images().size(), 2u);
}

// Experts, norms of q and k, biases, windows: whatever an image holds, the second start computes
// the same with it. Both plans, of the files and of the config alone, are what Load allocates.
TEST_F(EngineImages, HoldWhatEachFamilyHas) {
  for (const std::string& name : TinyModels()) {
    for (const bool quantised : {false, true}) {
      SCOPED_TRACE(name + (quantised ? " q8_0" : ""));
      EngineOptions options = options_;
      options.model = TinyModelPath(name);
      if (quantised) options.weights = "q8_0";
      const Start first = StartEngine(options);
      const Start second = StartEngine(options);
      EXPECT_TRUE(first.packed && !second.packed);
      EXPECT_EQ(Answers(*first.engine), Answers(*second.engine));

      const fs::path alone = folder_ / (name + (quantised ? "-q8_0" : ""));
      fs::create_directories(alone);
      fs::copy_file(TinyModelPath(name) + "/config.json", alone / "config.json");
      options.model = alone.string();
      options.weights = first.engine->plan().weights;
      const auto plan = Engine::PlanMemory(options);
      ASSERT_TRUE(plan) << plan.error().message;
      EXPECT_EQ(plan->weights_bytes, first.engine->plan().weights_bytes);
      EXPECT_EQ(plan->total_bytes, first.engine->plan().total_bytes);
    }
  }
}

// The table of sinusoids is packed and as long as the context.
TEST_F(EngineImages, EachLengthOfSinusoidsHasItsOwn) {
  const fs::path from = KVASIR_SOURCE_DIR "/tests/data/m2m100-random/00";
  EngineOptions options = options_;
  for (const char* length : {"40", "50"}) {
    const fs::path folder = folder_ / length;
    fs::create_directories(folder);
    fs::copy_file(from / "model.safetensors", folder / "model.safetensors");
    std::ifstream config(from / "config.json");
    std::string text{std::istreambuf_iterator<char>(config), {}};
    const std::string name = "\"max_position_embeddings\": ";
    const size_t at = text.find(name);
    ASSERT_NE(at, std::string::npos);
    const size_t number = at + name.size();
    text.replace(number, text.find_first_of(",\n}", number) - number, length);
    std::ofstream(folder / "config.json") << text;
    options.model = folder.string();
    EXPECT_TRUE(StartEngine(options).packed);
  }
  for (const char* length : {"40", "50"}) {
    options.model = (folder_ / length).string();
    const Start again = StartEngine(options);
    EXPECT_FALSE(again.packed);
    EXPECT_TRUE(again.warnings.empty());
  }
}

}  // namespace
}  // namespace kvasir
