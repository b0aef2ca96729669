// RunningAnswer: has an engine generate an answer, and passes on what there is to send.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "api/asked_chat.h"
#include "api/prompt_heads.h"
#include "api/written_answer.h"
#include "base/memory_meter.h"
#include "kvasir/engine.h"

namespace kvasir {

// A generation to start, and the answer that takes its events.
struct GenerationStart {
  std::vector<GenerateRequest> requests;
  // The engine gets so many at a time, the next one when one ends, or as many as its queue takes.
  // 0: it gets all of them, or none.
  uint32_t at_once = 0;
  std::unique_ptr<WrittenAnswer> answer;
  std::string prompt_field;  // what the request calls its prompt
  std::string tenant;
  HeadSpace heads;  // the tenant's, since the request came; empty: of a session, whose turn waits
  uint64_t answer_bytes;            // memory of the answer until it is sent
  PromptHead head;                  // GenerationCall::head
  std::shared_ptr<AskedChat> chat;  // absent: nothing follows from the answer
};

// What a generation needs threads for, where it may take long.
enum class SlowWork {
  kText,     // renders and tokenizes
  kGrammar,  // compiles the formats of requests
  kDisk,     // waits for a disk
};

// Gets an answer: a connection.
class AnswerClient {
 public:
  virtual ~AnswerClient() = default;

  // Calls `step` soon (thread-safe), where this client makes its other calls, one at a time.
  virtual void Post(std::function<void()> step) = 0;
  // Calls `work` (thread-safe), which must not throw, on a thread for such work. `bytes`: of text
  // that it works on.
  virtual void Run(SlowWork kind, const std::string& tenant, size_t bytes,
                   std::function<void(MemoryQuota& quota)> work) = 0;

  // Sends what there is: the answer has taken an event. `text`: what to stream now. Where the
  // answer is done, nothing comes after this call.
  virtual void OnAnswer(const std::string& text) = 0;
  // Ends the answer with an error, and cancels it.
  virtual void OnAnswerError(const Error& error) = 0;
};

class CountedMiss;

// States: made -> compiling (formats, if there are some) -> generating -> done, failed or
// cancelled. Events of the engine are posted to the client, so a slow client never blocks the
// engine's thread. All calls are made where the client makes its own; made by make_shared.
class RunningAnswer : public std::enable_shared_from_this<RunningAnswer> {
 public:
  // `charge` gets the tokens of each prompt that was answered, on any thread, also after the client
  // is gone. `engine` must outlive all events.
  RunningAnswer(GenerationStart start, Engine& engine, std::weak_ptr<AnswerClient> client,
                std::function<void(uint64_t tokens)> charge);

  // Keeps `held` until the engine has the requests.
  void Start(QuotaShare held);
  // Ends the answer: the client gets nothing more, and the keeper is dropped, on a thread for disks
  // if that waits for one.
  void Cancel();
  // Has the turn after this one prepared. REQUIRES: the answer is done.
  void PrepareNext();

  // Tells whether the engine has its requests: until then it may still be refused as a whole.
  bool generates() const { return !running_.empty(); }
  const WrittenAnswer& written() const { return *start_.answer; }
  const std::string& tenant() const { return start_.tenant; }

 private:
  void Compile(QuotaShare held);
  void Submit();
  IndexedSink MakeSink();
  Status SubmitNext();
  void ShareNoErased(GenerateRequest* request) const;
  bool IsLate(GenerateRequest* request) const;
  // Finds the reason of a miss, then hands the event on. Called on the engine's thread.
  void Explain(const Event& event, const std::shared_ptr<AskedChat>& chat,
               std::shared_ptr<CountedMiss> miss);
  void OnEvent(size_t prompt, const Event& event);
  void FinishKeeping(size_t prompt, const Event& event);
  // Posts a step, if the client is still there.
  void Post(std::function<void()> step) const;

  GenerationStart start_;  // its requests until the engine has them
  Engine& engine_;
  const std::weak_ptr<AnswerClient> client_;
  const std::function<void(uint64_t)> charge_;
  std::vector<RequestId> running_;
  // With GenerationStart::at_once: when the first one was submitted; how many were; which of them
  // have not ended.
  uint64_t begun_ns_ = 0;
  size_t num_submitted_ = 0, num_open_ = 0;
  bool is_cancelled_ = false;
};

}  // namespace kvasir
