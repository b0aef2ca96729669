// Activations that become infinite or NaN fail their own request, and leave nothing in the cache.
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "engine_scenario.h"
#include "source_paths.h"

namespace kvasir {
namespace {

constexpr TokenId kPoison = 7;

// A model of tests/data whose weights an edit changes. Written once, because an engine does not
// serve a model that changes meanwhile.
class EditedModel {
 public:
  explicit EditedModel(const std::string& family) : folder_(ScratchDir() / ("edited-" + family)) {
    namespace fs = std::filesystem;
    is_new_ = fs::create_directories(folder_);
    const fs::path from = fs::path(KVASIR_SOURCE_DIR) / "tests/data" / family;
    if (is_new_) fs::copy_file(from / "config.json", folder_ / "config.json");
    std::ifstream in(from / "model.safetensors", std::ios::binary);
    file_.assign(std::istreambuf_iterator<char>(in), {});
    std::memcpy(&header_bytes_, file_.data(), sizeof(header_bytes_));
    header_ = nlohmann::json::parse(file_.substr(8, header_bytes_));
  }
  void Set(const std::string& tensor, uint64_t row, uint64_t column, float value) {
    const nlohmann::json& entry = header_.at(tensor);
    const uint64_t begin = entry["data_offsets"][0], columns = entry["shape"][1];
    const bool f32 = entry["dtype"] == "F32";
    EXPECT_TRUE(f32 || entry["dtype"] == "BF16");  // the upper half of an f32
    const uint64_t size = f32 ? 4 : 2;
    char* const at = file_.data() + 8 + header_bytes_ + begin + (row * columns + column) * size;
    std::memcpy(at, reinterpret_cast<const char*>(&value) + (4 - size), size);
  }
  uint64_t rows(const std::string& tensor) const { return header_.at(tensor)["shape"][0]; }
  uint64_t columns(const std::string& tensor) const { return header_.at(tensor)["shape"][1]; }
  std::string Path() {
    if (is_new_) std::ofstream(folder_ / "model.safetensors", std::ios::binary) << file_;
    return folder_;
  }

 private:
  std::filesystem::path folder_;
  bool is_new_ = false;
  std::string file_;
  uint64_t header_bytes_ = 0;
  nlohmann::json header_;
};

// Writes a model with finite weights that overflow for one token: only that token has a number in
// dimension 0 of its embedding, nothing is added to it before `tensor` of the first layer
// multiplies it by 3e38.
std::string PoisonedModel(const std::string& family, const std::string& tensor) {
  EditedModel model(family);
  const std::string embedding = "model.embed_tokens.weight";
  const std::string attention = "model.layers.0.self_attn.o_proj.weight";
  for (uint64_t id = 0; id < model.rows(embedding); ++id) {
    model.Set(embedding, id, 0, id == static_cast<uint64_t>(kPoison) ? 100.0f : 0.0f);
  }
  if (tensor.find("mlp") != std::string::npos) {
    for (uint64_t i = 0; i < model.columns(attention); ++i) model.Set(attention, 0, i, 0);
  }
  model.Set(tensor, 0, 0, 3e38f);
  return model.Path();
}

class NonFinite : public testing::Test {
 protected:
  static EngineOptions Options(CacheMode mode) {
    EngineOptions options = DemoOptions();
    options.model = PoisonedModel("tiny-bias", "model.layers.0.self_attn.q_proj.weight");
    options.cache_mode = mode;
    return options;
  }
  static GenerateRequest Request(uint64_t seed, uint32_t prompt_tokens) {
    GenerateRequest request;
    for (uint32_t i = 0; i < prompt_tokens; ++i) {
      request.prompt.push_back(static_cast<TokenId>(10 + DrawBits(seed, 0, i) % 50));
    }
    request.max_tokens = 30;
    request.sampling.seed = seed;
    request.sampling.logit_bias = {{kPoison, -100.0f}};
    request.ignore_eos = true;
    return request;
  }
  // Asks with 20 good tokens, the bad one, 20 good ones.
  static GenerateRequest Poisoned() {
    GenerateRequest request = Request(1, 41);
    request.prompt[20] = kPoison;
    return request;
  }
  static void ExpectFails(const Answer& answer) {
    ASSERT_TRUE(answer.error);
    EXPECT_EQ(answer.error->code, Code::kCorruption);
    EXPECT_NE(answer.error->message.find("token 20 (id 7)"), std::string::npos)
        << answer.error->message;
    EXPECT_EQ(answer.choices[0].finish_reason, FinishReason::kError);
    EXPECT_TRUE(answer.choices[0].tokens.empty());
  }

  std::unique_ptr<Engine> engine_ = LoadEngine(Options(CacheMode::kPrefix));
  std::unique_ptr<Engine> twin_ = LoadEngine(Options(CacheMode::kSequence));
};

TEST_F(NonFinite, FailsItsOwnRequestAndNoBatchMate) {
  std::vector<std::unique_ptr<Pending>> mates;
  const auto mate = [](uint64_t seed) {
    GenerateRequest request = Request(seed, 40);
    request.chunk_tokens = 8;  // still running when the other fails
    return request;
  };
  for (uint64_t seed : {2, 3}) mates.push_back(std::make_unique<Pending>(*engine_, mate(seed)));
  ExpectFails(Ask(*engine_, Poisoned()));
  for (uint64_t seed : {2, 3}) {
    const Answer& answer = mates[seed - 2]->Wait();
    EXPECT_FALSE(answer.error);
    EXPECT_EQ(answer.choices[0].tokens.size(), 30u);
    EXPECT_EQ(answer.choices[0].tokens, Ask(*twin_, mate(seed)).choices[0].tokens);
  }
  EXPECT_EQ(engine_->Stats().requests_failed, 1u);
  EXPECT_EQ(engine_->Stats().requests_finished, 2u);
}

TEST_F(NonFinite, LeavesNothingInTheCache) {
  ExpectFails(Ask(*engine_, Poisoned()));
  EngineStats stats = engine_->Stats();
  EXPECT_EQ(stats.cached_tokens + stats.live_tokens + stats.cursors, 0u);
  EXPECT_EQ(stats.free_blocks, engine_->plan().num_blocks);

  // In chunks, blocks computed before the bad token stay in the cache; later ones do not.
  GenerateRequest chunks = Poisoned();
  chunks.chunk_tokens = 16;
  ExpectFails(Ask(*engine_, chunks));
  stats = engine_->Stats();
  EXPECT_EQ(stats.cached_tokens, 16u);
  EXPECT_EQ(stats.cursors, 0u);
  EXPECT_EQ(stats.pinned_blocks, 0u);
  const Answer again = Ask(*engine_, Poisoned());
  ExpectFails(again);
  EXPECT_EQ(again.receipt.cached_tokens(), 16u);

  // Others use its blocks, which still have its bytes.
  for (uint64_t seed = 4; seed < 9; ++seed) {
    const Answer answer = Ask(*engine_, Request(seed, 90));
    EXPECT_EQ(answer.choices[0].tokens, Ask(*twin_, Request(seed, 90)).choices[0].tokens);
  }
  engine_->CheckInvariants();
}

TEST_F(NonFinite, ARouterThatOverflowsFailsItsRequestAlone) {
  EngineOptions options = Options(CacheMode::kPrefix);
  options.model = PoisonedModel("tiny-qwen3-moe-norm", "model.layers.0.mlp.gate.weight");
  const auto engine = LoadEngine(options);
  options.cache_mode = CacheMode::kSequence;
  const auto twin = LoadEngine(options);
  GenerateRequest mate = Request(2, 40);
  mate.chunk_tokens = 8;  // still running when the other fails
  Pending running(*engine, mate);
  ExpectFails(Ask(*engine, Poisoned()));
  const Answer& answer = running.Wait();
  ASSERT_FALSE(answer.error) << answer.error->message;
  EXPECT_EQ(answer.choices[0].tokens, Ask(*twin, mate).choices[0].tokens);
  engine->CheckInvariants();
}

}  // namespace
}  // namespace kvasir
