// An engine whose process gets no memory or threads: its requests end, the engine continues, and
// later answers do not change.

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "engine_scenario.h"

namespace {

std::thread::id test_thread;
// The allocation of the threads beside the test's that fails, counted from 1; 0: no failure.
std::atomic<int64_t> fails_at{0}, count{0};
std::atomic<bool> failed{false};

void FailAt(int64_t number) {
  fails_at = 0;
  count = 0;
  failed = false;
  fails_at = number;
}

void* Allocate(std::size_t size, std::size_t alignment) {
  if (const int64_t at = fails_at;
      at != 0 && std::this_thread::get_id() != test_thread && ++count == at) {
    failed = true;
    throw std::bad_alloc();
  }
  void* memory = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return Allocate(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace kvasir {
namespace {

std::vector<TokenId> Prompt(uint32_t tokens, TokenId first) {
  std::vector<TokenId> ids;
  for (uint32_t i = 0; i < tokens; ++i) ids.push_back(first + static_cast<TokenId>(i * 7 % 50));
  return ids;
}

// Asks for two choices with logprobs, so that text, samplers and the pool's workers allocate.
GenerateRequest Wordy(TokenId first) {
  GenerateRequest request = Greedy(Prompt(70, first), 12);
  request.ignore_eos = true;
  request.n = 2;
  request.sampling.temperature = 1;
  request.sampling.seed = 5;
  request.logprobs = 3;
  request.stop = {"no such text"};
  return request;
}

// The events of a request. Its sink keeps an event, or throws and keeps nothing of it.
class Events {
 public:
  Events(Engine& engine, GenerateRequest request) : num_choices_(request.n) {
    const auto id = engine.Submit(std::move(request), [this](const Event& event) {
      events_.push_back(event);
      if (event.last) done_.set_value();
    });
    if (!id) events_.push_back({.error = id.error()}), done_.set_value();
  }
  Answer Wait() {
    done_.get_future().wait();
    Answer answer;
    answer.choices.resize(num_choices_);
    for (const Event& event : events_) {
      answer.choices[event.choice].text += event.text;
      if (event.error) answer.error = event.error;
    }
    return answer;
  }

 private:
  const uint32_t num_choices_;
  std::vector<Event> events_;
  std::promise<void> done_;
};

std::vector<std::string> TextsOf(const Answer& answer) {
  std::vector<std::string> texts;
  for (const Answer::Choice& choice : answer.choices) texts.push_back(choice.text);
  return texts;
}

TEST(Refusal, AnEventWhoseSinkHasNoMemoryIsToldAgain) {
  const auto engine = LoadEngine(DemoOptions());
  const Answer expected = Ask(*engine, Wordy(3));
  Answer answer;
  answer.choices.resize(2);
  std::promise<void> done;
  int calls = 0;
  const auto sink = [&](const Event& event) {
    if (++calls % 3 != 0) throw std::bad_alloc();
    Answer::Choice& choice = answer.choices[event.choice];
    for (const GeneratedToken& token : event.tokens) choice.tokens.push_back(token.id);
    choice.text += event.text;
    if (event.finish_reason != FinishReason::kNone) choice.finish_reason = event.finish_reason;
    if (event.last) done.set_value();
  };
  ASSERT_TRUE(engine->Submit(Wordy(3), sink));
  done.get_future().wait();
  EXPECT_EQ(TextsOf(answer), TextsOf(expected));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(answer.choices[i].tokens, expected.choices[i].tokens);
    EXPECT_EQ(answer.choices[i].finish_reason, FinishReason::kLength);
  }
  engine->Drain();
}

TEST(Refusal, AStepThatThrowsEndsItsRequestsAndNothingElse) {
  const auto engine = LoadEngine(DemoOptions());
  const Answer expected = Ask(*engine, Wordy(3));
  GenerateRequest throws = Wordy(9);
  throws.on_logits = [](uint32_t, uint32_t, std::span<const float>) { throw std::bad_alloc(); };
  const Answer failed_answer = Ask(*engine, throws);
  ASSERT_TRUE(failed_answer.error);
  EXPECT_EQ(failed_answer.error->code, Code::kUnavailable);
  EXPECT_EQ(failed_answer.num_last, 1u);
  engine->CheckInvariants();
  EXPECT_EQ(TextsOf(Ask(*engine, Wordy(3))), TextsOf(expected));
  EXPECT_EQ(engine->Stats().pinned_blocks, 0u);
}

TEST(Refusal, AnyAllocationOfTheEnginesThreadsMayFail) {
  test_thread = std::this_thread::get_id();
  EngineOptions options = DemoOptions();
  options.threads = 2;
  const auto engine = LoadEngine(options);
  const std::vector<std::string> expected = TextsOf(Ask(*engine, Wordy(3)));
  const std::vector<std::string> others = TextsOf(Ask(*engine, Wordy(9)));
  int num_failed = 0, num_errors = 0;
  for (int64_t n = 1;; ++n) {
    engine->Erase("");
    FailAt(n);
    Events first(*engine, Wordy(3)), second(*engine, Wordy(9));
    const Answer one = first.Wait(), other = second.Wait();
    fails_at = 0;
    num_errors += one.error.has_value() + other.error.has_value();
    EXPECT_TRUE(one.error || TextsOf(one) == expected) << n;
    EXPECT_TRUE(other.error || TextsOf(other) == others) << n;
    engine->CheckInvariants();
    EXPECT_EQ(TextsOf(Ask(*engine, Wordy(3))), expected) << "after allocation " << n;
    if (HasFailure()) return;
    if (!failed) break;
    ++num_failed;
  }
  EXPECT_GT(num_failed, 50);
  EXPECT_GT(num_errors, 50);
}

}  // namespace
}  // namespace kvasir
