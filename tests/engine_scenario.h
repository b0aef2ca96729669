// Shared by the engine's scenario tests: engines with small budgets, and the answers of a request.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvasir/engine.h"
#include "source_paths.h"

namespace kvasir {

// A folder of this process, removed at its end. In the child of a death test, which ends without
// cleaning up, the folder of the process that has set kFolderVariable.
inline constexpr const char* kFolderVariable = "KVASIR_TEST_FOLDER";
inline const std::filesystem::path& ScratchDir() {
  struct Folder {
    const char* parents = std::getenv(kFolderVariable);
    std::filesystem::path path =
        parents != nullptr
            ? parents
            : std::filesystem::temp_directory_path() / ("kvasir-test-" + std::to_string(getpid()));
    Folder() { std::filesystem::create_directories(path); }
    ~Folder() {
      if (parents == nullptr) std::filesystem::remove_all(path);
    }
  };
  static const Folder folder;
  return folder.path;
}

// Returns the bundled model in one thread and 16 MiB of KV.
inline EngineOptions DemoOptions() {
  EngineOptions options;
  options.model = KVASIR_SOURCE_DIR "/models/kvasir-demo";
  options.kv_memory_bytes = 16 << 20;
  options.threads = 1;
  options.cache_dir = ScratchDir() / "cache";
  options.state_dir = ScratchDir() / "state";
  return options;
}

// Returns the random weights with odd sizes; a row takes a tenth of the time of the bundled
// model's.
inline EngineOptions TinyOptions() {
  EngineOptions options = DemoOptions();
  options.model.reset();
  options.shape = "tiny";
  return options;
}

inline std::unique_ptr<Engine> LoadEngine(const EngineOptions& options) {
  Result<std::unique_ptr<Engine>> engine = Engine::Load(options);
  if (!engine) {
    ADD_FAILURE() << engine.error().message;
    std::abort();
  }
  return std::move(*engine);
}

inline GenerateRequest Greedy(std::vector<TokenId> prompt, uint32_t max_tokens) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  return request;
}

// The events of a sink, joined per choice.
struct Answer {
  struct Choice {
    std::vector<TokenId> tokens;
    std::vector<GeneratedToken> pieces;
    std::string text;
    FinishReason finish_reason = FinishReason::kNone;
    std::optional<std::string> stop_match;
    std::optional<float> score;
  };
  std::vector<Choice> choices;
  std::optional<Error> error;
  Receipt receipt;
  uint32_t completion_tokens = 0;
  uint32_t num_last = 0;
};

// A submitted request whose answer comes later.
class Pending {
 public:
  Pending(Engine& engine, GenerateRequest request) : engine_(engine), state_(new State) {
    state_->answer.choices.resize(request.n);
    Result<RequestId> id = engine.Submit(
        std::move(request), [state = state_](const Event& event) { state->Add(event); });
    if (id) {
      id_ = *id;
    } else {
      refused_ = id.error();
    }
  }

  const std::optional<Error>& refused() const { return refused_; }
  void Cancel() { engine_.Cancel(id_); }
  bool done() const { return done_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  Answer& Wait() {
    if (refused_) {
      ADD_FAILURE() << refused_->message;
      std::abort();
    }
    done_.wait();
    return state_->answer;
  }

 private:
  struct State {
    Answer answer;
    std::promise<void> done;
    void Add(const Event& event) {
      Answer::Choice& choice = answer.choices[event.choice];
      for (const GeneratedToken& token : event.tokens) {
        choice.tokens.push_back(token.id);
        choice.pieces.push_back(token);
      }
      choice.text += event.text;
      if (event.finish_reason != FinishReason::kNone) {
        EXPECT_EQ(choice.finish_reason, FinishReason::kNone) << "two finish reasons";
        choice.finish_reason = event.finish_reason;
      }
      if (event.stop_match) choice.stop_match = event.stop_match;
      if (event.score) choice.score = event.score;
      if (event.error) answer.error = event.error;
      if (!event.last) return;
      answer.receipt = event.receipt;
      answer.completion_tokens = event.completion_tokens;
      if (++answer.num_last == 1) done.set_value();
    }
  };

  Engine& engine_;
  std::shared_ptr<State> state_;
  std::future<void> done_ = state_->done.get_future();
  RequestId id_{};
  std::optional<Error> refused_;
};

inline Answer Ask(Engine& engine, GenerateRequest request) {
  return std::move(Pending(engine, std::move(request)).Wait());
}

}  // namespace kvasir
