#include "api/running_answer.h"

#include <gtest/gtest.h>

#include <deque>
#include <utility>

#include "api/embedding_writer.h"
#include "api/openai_writer.h"
#include "base/own_clock.h"
#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

// Refuses requests and formats where a test says so.
class RefusingEngine : public FakeEngine {
 public:
  using FakeEngine::FakeEngine;
  Result<std::vector<RequestId>> SubmitAll(std::vector<GenerateRequest> requests,
                                           IndexedSink sink) override {
    if (!refusal) return FakeEngine::SubmitAll(std::move(requests), std::move(sink));
    return tl::unexpected(*refusal);
  }
  Status CompileFormats(std::span<GenerateRequest>) override { return compiled; }

  std::optional<Error> refusal;
  Status compiled;
};

// A client whose steps and slow work wait until the test runs them.
class WaitingClient : public AnswerClient {
 public:
  void Post(std::function<void()> step) override { steps.push_back(std::move(step)); }
  void Run(SlowWork kind, const std::string&, size_t,
           std::function<void(MemoryQuota&)> work) override {
    kinds.push_back(kind);
    works.push_back(std::move(work));
  }
  void OnAnswer(const std::string& text) override { sent.push_back(text); }
  void OnAnswerError(const Error& error) override { errors.push_back(error); }

  void RunSteps() {
    for (; !steps.empty(); steps.pop_front()) steps.front()();
  }
  void RunWork() {
    MemoryQuota quota(1 << 20);
    for (; !works.empty(); works.pop_front()) works.front()(quota);
  }

  std::deque<std::function<void()>> steps;
  std::deque<std::function<void(MemoryQuota&)>> works;
  std::vector<SlowWork> kinds;
  std::vector<std::string> sent;
  std::vector<Error> errors;
};

// Says where its end waits, and what became of it.
class NotingKeeper : public AnswerKeeper {
 public:
  explicit NotingKeeper(std::string* said, Status kept = {})
      : said_(said), kept_(std::move(kept)) {}
  ~NotingKeeper() override { *said_ += "-"; }
  void Take(const Event& event) override { *said_ += event.text; }
  Status Finish() override {
    *said_ += "!";
    return kept_;
  }
  bool waits_for_disk() const override { return true; }
  uint64_t held_bytes() const override { return 0; }

 private:
  std::string* const said_;
  const Status kept_;
};

class RunningAnswerTest : public testing::Test {
 protected:
  std::shared_ptr<RunningAnswer> Make(GenerateRequest request = {},
                                      std::unique_ptr<AnswerKeeper> keeper = nullptr,
                                      std::shared_ptr<AskedChat> chat = nullptr) {
    GenerationStart start;
    start.requests.push_back(std::move(request));
    AnswerSpec spec;
    spec.stream = true;
    start.answer = std::make_unique<WrittenAnswer>(std::move(spec), 1, "7", 5, nullptr,
                                                   std::make_unique<OpenAiWriter>(OpenAiForm()));
    if (keeper) start.answer->KeepIn(std::move(keeper));
    start.chat = std::move(chat);
    start.prompt_field = "prompt";
    start.tenant = "t";
    return std::make_shared<RunningAnswer>(std::move(start), engine_, client_,
                                           [this](uint64_t tokens) { charged_ += tokens; });
  }
  void Tell(std::string text, bool last = false) {
    Event event;
    event.text = std::move(text);
    if (last) event.finish_reason = FinishReason::kStop;
    event.last = last;
    event.prefilled_tokens = last ? 3 : 0;
    event.completion_tokens = last ? 2 : 0;
    engine_.submitted.back().second(event);
  }

  RefusingEngine engine_{nullptr, nullptr};
  const std::shared_ptr<WaitingClient> client_ = std::make_shared<WaitingClient>();
  uint64_t charged_ = 0;
};

TEST_F(RunningAnswerTest, EventsReachTheClientWhereItMakesItsCalls) {
  const auto answer = Make();
  answer->Start({});
  ASSERT_TRUE(answer->generates());
  Tell("a");
  EXPECT_TRUE(client_->sent.empty());
  client_->RunSteps();
  Tell("b", /*last=*/true);
  client_->RunSteps();
  ASSERT_EQ(client_->sent.size(), 2u);
  EXPECT_NE(client_->sent[0].find("\"a\""), std::string::npos) << client_->sent[0];
  EXPECT_TRUE(client_->sent[1].ends_with("data: [DONE]\n\n"));
  EXPECT_TRUE(answer->written().done());
  EXPECT_EQ(charged_, 5u);
}

// An answer of many texts, of which two are read at once.
class ManyTextsTest : public RunningAnswerTest {
 protected:
  std::shared_ptr<RunningAnswer> MakeMany(size_t num_texts,
                                          std::optional<uint64_t> timeout_ms = {}) {
    GenerationStart start;
    for (size_t i = 0; i < num_texts; ++i) {
      GenerateRequest& request = start.requests.emplace_back();
      request.prompt = {static_cast<TokenId>(i)};
      request.timeout_ms = timeout_ms;
    }
    start.at_once = 2;
    start.answer = std::make_unique<WrittenAnswer>(
        AnswerSpec(), num_texts, "7", 5, nullptr,
        std::make_unique<EmbeddingWriter>(EmbeddingForm{.dimensions = 1}, num_texts));
    start.prompt_field = "input";
    start.tenant = "t";
    start.heads = heads_.SpaceOf("t");
    return std::make_shared<RunningAnswer>(std::move(start), engine_, client_,
                                           [this](uint64_t tokens) { charged_ += tokens; });
  }
  void EndText(size_t index) {
    Event event;
    event.finish_reason = FinishReason::kLength;
    event.embedding = {2};
    event.last = true;
    event.prefilled_tokens = 1;
    engine_.submitted[index].second(event);
    client_->RunSteps();
  }

  PromptHeads heads_{0, 1};
};

TEST_F(ManyTextsTest, WhatIsReadAfterAnEraseStaysOutOfTheCache) {
  const auto answer = MakeMany(4);
  answer->Start({});
  heads_.Erase("another");
  EndText(1);
  heads_.Erase("t");
  EndText(0);
  ASSERT_EQ(engine_.submitted.size(), 4u);
  for (size_t i = 0; i < 3; ++i) EXPECT_NE(engine_.submitted[i].first.reuse, Reuse::kNothing) << i;
  EXPECT_EQ(engine_.submitted[3].first.reuse, Reuse::kNothing);
}

TEST_F(ManyTextsTest, TheNextOneFollowsWhenOneEnds) {
  const auto answer = MakeMany(4);
  answer->Start({});
  ASSERT_EQ(engine_.submitted.size(), 2u);
  EndText(1);
  EXPECT_EQ(engine_.submitted.size(), 3u);
  EndText(0);
  EXPECT_EQ(engine_.submitted.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(engine_.submitted[i].first.prompt, std::vector<TokenId>{static_cast<TokenId>(i)});
  }
  EndText(3);
  EXPECT_FALSE(answer->written().done());
  EndText(2);
  EXPECT_TRUE(answer->written().done());
  EXPECT_EQ(charged_, 4u);
  EXPECT_TRUE(client_->errors.empty());
}

TEST_F(ManyTextsTest, AFullQueueIsNoErrorWhileOneOfThemEnds) {
  const auto answer = MakeMany(3);
  const Error full{Code::kExhausted, "full"};
  engine_.room = tl::unexpected(full);
  answer->Start({});
  EXPECT_EQ(engine_.submitted.size(), 1u);
  engine_.room = {};
  EndText(0);
  EXPECT_EQ(engine_.submitted.size(), 3u);
  engine_.refusal = full;
  const auto other = MakeMany(1);
  other->Start({});
  ASSERT_EQ(client_->errors.size(), 1u);
  EXPECT_EQ(client_->errors[0].code, Code::kExhausted);
}

TEST_F(ManyTextsTest, AnErrorEndsAllOfThem) {
  const auto answer = MakeMany(4);
  answer->Start({});
  engine_.refusal = Error{Code::kInvalidArgument, "is too long", "prompt"};
  EndText(0);
  ASSERT_EQ(client_->errors.size(), 1u);
  EXPECT_EQ(client_->errors[0].field, "input[2]");
  answer->Cancel();
  EXPECT_EQ(engine_.cancelled.size(), 2u);
}

TEST_F(ManyTextsTest, TheTimeLimitIsOfAll) {
  OwnClock clock;
  const auto answer = MakeMany(4, 100);
  answer->Start({});
  clock.Advance(std::chrono::milliseconds(60));
  EndText(0);
  EXPECT_EQ(engine_.submitted[2].first.timeout_ms, 40u);
  clock.Advance(std::chrono::milliseconds(40));
  EndText(1);
  ASSERT_EQ(client_->errors.size(), 1u);
  EXPECT_EQ(client_->errors[0].code, Code::kDeadlineExceeded);
}

// Before any is read, the request need not have been begun; afterwards its time has been used.
TEST_F(ManyTextsTest, ATimeLimitThatIsTooShortIsSaidBeforeOneIsReadOrPasses) {
  Error late{Code::kUnavailable, "expected to take longer"};
  late.cause = Cause::kDeadline;
  engine_.refusal = late;
  const auto first = MakeMany(4, 100);
  first->Start({});
  engine_.refusal.reset();
  const auto later = MakeMany(4, 100);
  later->Start({});
  engine_.refusal = late;
  EndText(0);
  ASSERT_EQ(client_->errors.size(), 2u);
  EXPECT_EQ(HttpStatus(client_->errors[0]), 503);
  EXPECT_EQ(HttpStatus(client_->errors[1]), 504);
}

TEST_F(RunningAnswerTest, ACancelledOneSendsNothingAndIsCharged) {
  const auto answer = Make();
  answer->Start({});
  Tell("a");
  answer->Cancel();
  client_->RunSteps();
  Tell("b", /*last=*/true);
  client_->RunSteps();
  EXPECT_TRUE(client_->sent.empty());
  EXPECT_EQ(engine_.cancelled.size(), 1u);
  EXPECT_EQ(charged_, 5u);
}

// The engine's last event may come when the client has just left, and the chat is given up.
TEST_F(RunningAnswerTest, ACancelledOneStillExplainsItsMiss) {
  TurnPreparer preparer(engine_);
  const ModelView model;
  GenerateRequest request;
  request.caller_explains = true;
  const auto answer =
      Make(request, nullptr, std::make_shared<AskedChat>(R"({"messages": []})", model, preparer));
  answer->Start({});
  answer->Cancel();
  Event event;
  event.finish_reason = FinishReason::kStop;
  event.last = true;
  event.receipt.miss = Miss{MissReason::kDiverged};
  engine_.submitted.back().second(event);
  EXPECT_EQ(client_->kinds, std::vector{SlowWork::kText});
  client_->RunWork();
  EXPECT_EQ(engine_.counted_misses, std::vector{MissReason::kDiverged});
}

TEST_F(RunningAnswerTest, OneThatNobodyHoldsIsGoneWithItsLastStep) {
  std::weak_ptr<RunningAnswer> weak;
  {
    const auto answer = Make();
    weak = answer;
    answer->Start({});
    Tell("a");
  }
  EXPECT_FALSE(weak.expired());
  client_->RunSteps();
  EXPECT_TRUE(weak.expired());
  Tell("b", /*last=*/true);
  EXPECT_TRUE(client_->steps.empty());
}

TEST_F(RunningAnswerTest, FormatsAreCompiledBeforeTheEngineHasTheRequests) {
  GenerateRequest request;
  request.format.emplace().text = {.language = FormatLanguage::kGbnf, .text = "root ::= \"a\""};
  auto answer = Make(request);
  answer->Start({});
  EXPECT_EQ(client_->kinds, std::vector{SlowWork::kGrammar});
  EXPECT_FALSE(answer->generates());
  client_->RunWork();
  client_->RunSteps();
  EXPECT_TRUE(answer->generates());

  engine_.compiled = FailField(Code::kInvalidArgument, "grammar", "is wrong");
  answer = Make(request);
  answer->Start({});
  client_->RunWork();
  client_->RunSteps();
  ASSERT_EQ(client_->errors.size(), 1u);
  EXPECT_EQ(client_->errors[0].field, "grammar");
}

TEST_F(RunningAnswerTest, ARefusalNamesWhatTheRequestCallsItsPrompt) {
  engine_.refusal = Error{Code::kInvalidArgument, "is empty", "prompt"};
  Make()->Start({});
  ASSERT_EQ(client_->errors.size(), 1u);
  EXPECT_EQ(client_->errors[0].field, "prompt");
}

TEST_F(RunningAnswerTest, AnAnswerIsKeptOnADiskBeforeItsEndIsSent) {
  for (const bool fails : {false, true}) {
    std::string said;
    client_->sent.clear();
    const Status kept = fails ? Status(FailField(Code::kUnavailable, "", "no disk")) : Status();
    const auto answer = Make({}, std::make_unique<NotingKeeper>(&said, kept));
    answer->Start({});
    Tell("a");
    Tell("b", /*last=*/true);
    client_->RunSteps();
    EXPECT_EQ(said, "ab");
    EXPECT_EQ(client_->sent.size(), 1u);
    ASSERT_EQ(client_->kinds.back(), SlowWork::kDisk);
    client_->RunWork();
    EXPECT_EQ(said, "ab!-");
    client_->RunSteps();
    EXPECT_EQ(client_->sent.size(), fails ? 1u : 2u);
    EXPECT_EQ(client_->errors.size(), fails ? 1u : 0u);
  }
}

TEST_F(RunningAnswerTest, WhatACancelledOneKeptEndsWhereItMayWaitForADisk) {
  std::string said;
  const auto answer = Make({}, std::make_unique<NotingKeeper>(&said));
  answer->Start({});
  answer->Cancel();
  EXPECT_EQ(said, "");
  EXPECT_EQ(client_->kinds, std::vector{SlowWork::kDisk});
  client_->RunWork();
  EXPECT_EQ(said, "-");
}

}  // namespace
}  // namespace kvasir
