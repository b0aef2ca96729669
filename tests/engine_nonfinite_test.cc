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

// tests/data/tiny-bias with finite weights that overflow for one token: only that token has a
// number in dimension 0 of its embedding, and the first layer's query multiplies that by 3e38.
// Written once, because an engine does not serve a model that changes meanwhile.
std::string PoisonedModel() {
  namespace fs = std::filesystem;
  const fs::path folder = ScratchDir() / "poisoned";
  if (!fs::create_directories(folder)) return folder;
  const fs::path from = KVASIR_SOURCE_DIR "/tests/data/tiny-bias";
  fs::copy_file(from / "config.json", folder / "config.json", fs::copy_options::overwrite_existing);
  std::ifstream in(from / "model.safetensors", std::ios::binary);
  std::string file(std::istreambuf_iterator<char>(in), {});
  uint64_t header_bytes;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  const auto header = nlohmann::json::parse(file.substr(8, header_bytes));
  const auto set = [&](const char* tensor, uint64_t row, float value) {
    const nlohmann::json& entry = header.at(tensor);
    EXPECT_EQ(entry["dtype"], "F32");
    const uint64_t columns = entry["shape"][1];
    const uint64_t begin = entry["data_offsets"][0];
    std::memcpy(file.data() + 8 + header_bytes + begin + row * columns * 4, &value, 4);
  };
  for (TokenId id = 0; id < 67; ++id) {
    set("model.embed_tokens.weight", static_cast<uint64_t>(id), id == kPoison ? 100.0f : 0.0f);
  }
  set("model.layers.0.self_attn.q_proj.weight", 0, 3e38f);
  std::ofstream(folder / "model.safetensors", std::ios::binary) << file;
  return folder;
}

class NonFinite : public testing::Test {
 protected:
  static EngineOptions Options(CacheMode mode) {
    EngineOptions options = DemoOptions();
    options.model = PoisonedModel();
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
  // 20 good tokens, the bad one, 20 good ones.
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

}  // namespace
}  // namespace kvasir
