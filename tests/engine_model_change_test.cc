// Model files and images that are changed, truncated, replaced or removed while an engine serves
// them.
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/mapping_faults.h"
#include "engine_scenario.h"
#include "source_paths.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using namespace std::chrono_literals;

std::string Read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

void Write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string Size(uint64_t size) { return {reinterpret_cast<const char*>(&size), sizeof(size)}; }

// Unties the bundled model: writes its embedding again as a separate head. Then rows of the
// embedding are read in place in the file.
void Untie(const fs::path& folder) {
  json config = json::parse(Read(folder / "config.json"));
  config["tie_word_embeddings"] = false;
  Write(folder / "config.json", config.dump());
  const std::string file = Read(folder / "model.safetensors");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  json header = json::parse(file.substr(8, header_bytes));
  std::string data = file.substr(8 + header_bytes);
  json head = header["model.embed_tokens.weight"];
  const uint64_t begin = head["data_offsets"][0], end = head["data_offsets"][1];
  head["data_offsets"] = {data.size(), data.size() + end - begin};
  data += data.substr(begin, end - begin);
  header["lm_head.weight"] = head;
  Write(folder / "model.safetensors", Size(header.dump().size()) + header.dump() + data);
}

enum class Weights { kInPlace, kPacked, kImage };

class ModelChange : public testing::Test {
 protected:
  ModelChange() {
    CatchMappingFaults();
    static int serial = 0;
    folder_ = ScratchDir() / ("change-" + std::to_string(++serial));
    model_ = folder_ / "model" / "model.safetensors";
    fs::create_directories(folder_);
    fs::copy(KVASIR_SOURCE_DIR "/models/kvasir-demo", folder_ / "model",
             fs::copy_options::recursive);
    options_ = DemoOptions();
    options_.speculate = Speculate::kOff;  // a step gives one token: changes come between two
    options_.model = folder_ / "model";
    options_.cache_dir = folder_ / "cache";
    options_.state_dir = folder_ / "state";
    options_.image_cap_bytes = 0;
    options_.on_model_change = [this](const std::string& text) { told_.push_back(text); };
  }

  // Starts an engine, and returns the file whose bytes it reads.
  fs::path Start(Weights weights) {
    if (weights == Weights::kInPlace) Untie(folder_ / "model");
    if (weights == Weights::kImage) {
      options_.image_cap_bytes = uint64_t{1} << 30;
      LoadEngine(options_);  // packs
    }
    engine_ = LoadEngine(options_);
    EXPECT_EQ(engine_->card().weights_shared, weights == Weights::kImage);
    EXPECT_EQ(engine_->plan().mapped_bytes > 0, weights == Weights::kInPlace);
    return weights == Weights::kImage ? fs::path(ListImages(options_.cache_dir).at(0).path)
                                      : model_;
  }

  static GenerateRequest Prompt(uint32_t max_tokens = 200) {
    GenerateRequest request =
        Greedy({5, 17, 60, 101, 7, 9, 300, 41, 77, 12, 5, 8, 3, 90, 14, 6, 2}, max_tokens);
    request.ignore_eos = true;
    return request;
  }

  // Runs a request and calls `change` after its 31st token, when the next step fills a block of 16
  // (the prompt has 17); it must end with the error. Its text until then is right, and nothing
  // computed later is kept.
  void ExpectARunningRequestEnds(const fs::path& path, const std::function<void()>& change) {
    const std::vector<TokenId> want = Ask(*engine_, Prompt()).choices[0].tokens;
    ASSERT_EQ(want.size(), 200u);
    engine_->Erase("default");
    std::vector<TokenId> got;
    std::optional<EngineStats> at_change;
    std::optional<Error> error;
    std::promise<void> done;
    const Result<RequestId> id = engine_->Submit(Prompt(), [&](const Event& event) {
      for (const GeneratedToken& token : event.tokens) got.push_back(token.id);
      if (got.size() >= 31 && !at_change) {
        change();
        at_change = engine_->Stats();
      }
      if (event.error) error = event.error;
      if (event.last) done.set_value();
    });
    ASSERT_TRUE(id);
    done.get_future().wait();
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code, Code::kModelChanged);
    EXPECT_NE(error->message.find(path.string()), std::string::npos) << error->message;
    EXPECT_EQ(got.size(), 31u);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin()));
    EXPECT_EQ(engine_->Stats().committed_blocks, at_change->committed_blocks);
    EXPECT_EQ(engine_->Stats().cursors, at_change->cursors);
    ExpectAllIsRefused(path);
  }

  void ExpectAllIsRefused(const fs::path& path) {
    const uint64_t committed = engine_->Stats().committed_blocks;
    for (int i = 0; i < 2; ++i) {  // also a hit of what was kept
      const Answer answer = Ask(*engine_, Prompt(3));
      ASSERT_TRUE(answer.error);
      EXPECT_EQ(answer.error->code, Code::kModelChanged);
      EXPECT_NE(answer.error->message.find(path.string()), std::string::npos);
      EXPECT_TRUE(answer.choices[0].tokens.empty());
    }
    const Status status = engine_->CheckModel();
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::kModelChanged);
    EXPECT_EQ(engine_->Stats().committed_blocks, committed);
    engine_->CheckInvariants();
    ASSERT_EQ(told_.size(), 1u);
    EXPECT_NE(told_.at(0).find("restart the server"), std::string::npos) << told_.at(0);
  }

  static void Overwrite(const fs::path& path) {
    const std::string bytes = Read(path);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(bytes.size() / 2));
    file << std::string(bytes.size() - bytes.size() / 2, '\x11');
  }

  EngineOptions options_;
  fs::path folder_, model_;
  std::vector<std::string> told_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(ModelChange, AnOverwrittenFileEndsARunningRequest) {
  const fs::path path = Start(Weights::kInPlace);
  ExpectARunningRequestEnds(path, [&] { Overwrite(path); });
}

TEST_F(ModelChange, AnOverwrittenFileWhoseTimeIsPutBackEndsARunningRequest) {
  const fs::path path = Start(Weights::kInPlace);
  ExpectARunningRequestEnds(path, [&] {
    const fs::file_time_type time = fs::last_write_time(path);
    Overwrite(path);
    fs::last_write_time(path, time);
  });
}

TEST_F(ModelChange, ACutFileEndsARunningRequest) {
  const fs::path path = Start(Weights::kInPlace);
  ExpectARunningRequestEnds(path, [&] { fs::resize_file(path, 0); });
}

// The change comes between the two halves of a step's logits; later logits are not used.
TEST_F(ModelChange, LogitsThatWereComputedAfterAChangeAreNotUsed) {
  const fs::path path = Start(Weights::kImage);  // the head is a part of it
  GenerateRequest request = Prompt();
  const uint32_t at_once = 16;  // rows of one product with the head
  ASSERT_EQ(request.prompt.size(), at_once + 1);
  uint32_t rows = 0;
  request.on_logits = [&](uint32_t, uint32_t, std::span<const float>) {
    if (rows++ == 0) Overwrite(path);
  };
  const Answer answer = Ask(*engine_, std::move(request));
  ASSERT_TRUE(answer.error);
  EXPECT_EQ(answer.error->code, Code::kModelChanged);
  EXPECT_EQ(rows, at_once);
  EXPECT_TRUE(answer.choices[0].tokens.empty());
}

// Size and times are restored; only the lost page shows the change.
TEST_F(ModelChange, AFileThatIsCutAndWholeAgainEndsARunningRequest) {
  const fs::path path = Start(Weights::kInPlace);
  const std::string bytes = Read(path);
  ExpectARunningRequestEnds(path, [&] {
    fs::resize_file(path, 0);
    Write(path, bytes);
  });
}

TEST_F(ModelChange, AnOverwrittenImageEndsARunningRequest) {
  const fs::path path = Start(Weights::kImage);
  ExpectARunningRequestEnds(path, [&] { Overwrite(path); });
}

TEST_F(ModelChange, ACutImageEndsARunningRequest) {
  const fs::path path = Start(Weights::kImage);
  ExpectARunningRequestEnds(path, [&] { fs::resize_file(path, 5000); });
}

TEST_F(ModelChange, AChangedImageIsMadeAgainByTheNextStart) {
  const fs::path path = Start(Weights::kImage);
  const std::vector<TokenId> want = Ask(*engine_, Prompt()).choices[0].tokens;
  Overwrite(path);
  ExpectAllIsRefused(path);
  EXPECT_EQ(Ask(*LoadEngine(options_), Prompt()).choices[0].tokens, want);
  EXPECT_TRUE(LoadEngine(options_)->card().weights_shared);
}

// The file is no longer read, but a restart would serve other weights.
TEST_F(ModelChange, AChangeOfAFileThatWasPackedRefusesRequestsAndEndsRunningOnes) {
  const fs::path path = Start(Weights::kPacked);
  GenerateRequest endless = Prompt(2000);
  std::promise<void> running;
  bool told = false;
  endless.on_logits = [&](uint32_t, uint32_t, std::span<const float>) {
    if (!std::exchange(told, true)) running.set_value();
  };
  Pending first(*engine_, std::move(endless));
  running.get_future().wait();
  Overwrite(path);
  Pending second(*engine_, Prompt(3));
  ASSERT_TRUE(second.Wait().error);
  EXPECT_EQ(second.Wait().error->code, Code::kModelChanged);
  ASSERT_TRUE(first.Wait().error);
  EXPECT_EQ(first.Wait().error->code, Code::kModelChanged);
  ExpectAllIsRefused(path);
}

TEST_F(ModelChange, ARemovedFileRefusesRequestsUntilItIsBack) {
  const fs::path path = Start(Weights::kInPlace);
  const std::vector<TokenId> want = Ask(*engine_, Prompt()).choices[0].tokens;
  fs::rename(path, folder_ / "aside");
  ExpectAllIsRefused(path);
  EXPECT_NE(told_.at(0).find("is gone"), std::string::npos) << told_.at(0);
  fs::rename(folder_ / "aside", path);
  const auto end = std::chrono::steady_clock::now() + 10s;  // CheckModel's answer may be old
  while (!engine_->CheckModel() && std::chrono::steady_clock::now() < end) {
  }
  EXPECT_TRUE(engine_->CheckModel());
  const Answer answer = Ask(*engine_, Prompt());
  EXPECT_EQ(answer.choices[0].tokens, want);
  EXPECT_GT(answer.receipt.cached_tokens(), 0u);
}

TEST_F(ModelChange, AFileThatIsReplacedByRenamingIsServedOn) {
  const fs::path path = Start(Weights::kInPlace);
  const std::vector<TokenId> want = Ask(*engine_, Prompt()).choices[0].tokens;
  Write(folder_ / "new", Read(path));
  Overwrite(folder_ / "new");
  fs::rename(folder_ / "new", path);
  for (const bool cached : {true, false}) {
    GenerateRequest request = Prompt();
    request.reuse = cached ? Reuse::kAll : Reuse::kNothing;
    const Answer answer = Ask(*engine_, std::move(request));
    EXPECT_FALSE(answer.error);
    EXPECT_EQ(answer.choices[0].tokens, want);
  }
  EXPECT_TRUE(engine_->CheckModel());
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_NE(told_.at(0).find("replaced"), std::string::npos) << told_.at(0);
}

TEST_F(ModelChange, ARemovedImageIsServedOn) {
  const fs::path path = Start(Weights::kImage);
  const std::vector<TokenId> want = Ask(*engine_, Prompt()).choices[0].tokens;
  fs::remove(path);
  EXPECT_EQ(Ask(*engine_, Prompt()).choices[0].tokens, want);
  EXPECT_TRUE(engine_->CheckModel());
  EXPECT_TRUE(told_.empty());
}

TEST_F(ModelChange, AnotherStartThatMapsTheSameImageChangesNothing) {
  Start(Weights::kImage);
  const auto other = LoadEngine(options_);
  EXPECT_FALSE(Ask(*engine_, Prompt(3)).error);
  EXPECT_TRUE(engine_->CheckModel());
}

// A change in each phase of a start: an error with the path, and nothing is kept of it.
TEST_F(ModelChange, AChangeWhileLoadingIsAnErrorAndIsNotRemembered) {
  const auto cut = [&] { fs::resize_file(model_, 5000); };
  const auto overwrite = [&] { Overwrite(model_); };
  const std::string whole = Read(model_);
  options_.image_cap_bytes = uint64_t{1} << 30;
  for (const char* phase : {"digest of the weights", "weights"}) {
    for (const std::function<void()>& change : std::vector<std::function<void()>>{cut, overwrite}) {
      Write(model_, whole);
      EngineOptions options = options_;
      bool changed = false;
      options.progress = [&](const char* name, double) {
        if (std::string_view(name) == phase && !std::exchange(changed, true)) change();
      };
      const auto engine = Engine::Load(options);
      EXPECT_TRUE(changed);
      ASSERT_FALSE(engine) << phase;
      EXPECT_EQ(engine.error().code, Code::kModelChanged) << engine.error().message;
      EXPECT_NE(engine.error().message.find(model_.string()), std::string::npos);
      EXPECT_TRUE(ListImages(options_.cache_dir).empty());
    }
  }
  Write(model_, whole);
  const auto want = Ask(*LoadEngine(DemoOptions()), Prompt()).choices[0].tokens;
  EXPECT_EQ(Ask(*LoadEngine(options_), Prompt()).choices[0].tokens, want);
}

}  // namespace
}  // namespace kvasir
