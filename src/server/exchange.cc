#include "server/exchange.h"

#include <fmt/format.h>

#include <boost/asio/post.hpp>
#include <boost/system/error_code.hpp>
#include <chrono>
#include <utility>
#include <variant>

#include "base/until_done.h"
#include "http/errors.h"
#include "http/http_text.h"
#include "http/request_id.h"
#include "server/connection_step.h"

namespace kvasir {
namespace {

constexpr size_t kMaxUnsentBytes = 8 << 20;  // waiting for a client that reads a stream too slowly

}  // namespace

Exchange::Exchange(const ConnectionParts& parts, const std::shared_ptr<ExchangeHost>& host,
                   boost::asio::any_io_executor strand, ResponseWriter& writer)
    : parts_(parts),
      weak_host_(host),
      host_(*host),
      strand_(std::move(strand)),
      writer_(writer),
      ping_(strand_) {
  writer_.SetRequest({});  // not that of the request before
}

template <typename Step>
void Exchange::RunStep(Step&& step) noexcept {
  if (!RunLogged(step)) host_.Close();
}

template <typename Step>
void Exchange::Soon(Step step) {
  const std::shared_ptr<ExchangeHost> host = weak_host_.lock();
  if (!host) return;
  boost::asio::post(strand_, [host, self = shared_from_this(), step = std::move(step)]() mutable {
    if (!self->is_over_) self->RunStep(step);
  });
}

// --- the request

std::optional<HttpResponse> Exchange::TakeHead(RequestHead head) {
  request_ = std::move(head.request);
  if (!IsRequestId(request_.id)) request_.id = MakeRequestId();
  log_.emplace(request_.method, request_.target);
  log_->set_id(request_.id);
  if (head.is_head) request_.method = "GET";
  keep_alive_ = head.keep_alive;
  writer_.SetRequest({.version = head.version, .is_head = head.is_head});
  if (head.refusal) {
    keep_alive_ = false;
    return ErrorResponse(*head.refusal);
  }
  if (auto refusal = parts_.service.CheckHead(request_, head.body_bytes)) {
    if (!head.whole) keep_alive_ = false;
    return refusal;
  }
  if (head.whole) return std::nullopt;
  max_body_bytes_ = parts_.service.MaxBodyBytes(request_);
  if (memory_.body.Hold(head.body_bytes.value_or(max_body_bytes_))) return std::nullopt;
  keep_alive_ = false;
  parts_.service.CountRejection(RejectReason::kMemory);
  return ErrorResponse({Code::kUnavailable, "too many large requests are being read; try again"});
}

void Exchange::RespondToUnread(const Error& error) {
  keep_alive_ = false;
  if (!log_) {  // not even the first line can be read
    request_.id = MakeRequestId();
    log_.emplace("-", "-").set_id(request_.id);
  }
  Respond(ErrorResponse(error));
}

// --- finding the answer

void Exchange::Dispatch() {
  if (auto refusal = parts_.service.TakeKey(&request_)) return Respond(std::move(*refusal));
  auto turn = parts_.service.AwaitTurn(request_, [weak = weak_from_this()] {
    const std::shared_ptr<Exchange> self = weak.lock();
    if (!self) return;
    UntilDone([&] { self->Soon([raw = self.get()] { raw->Handle(); }); });
  });
  if (!turn) return Respond(ErrorResponse(turn.error()));
  turn_ = std::move(*turn);
  if (!turn_ || turn_->has_come()) return Handle();
  awaiting_ = true;
  host_.WatchClient();
}

void Exchange::Handle() {
  Service& service = parts_.service;
  if (!service.NeedsPreparing(request_)) return Reply({{}, service.Handle(request_, turn_)});
  awaiting_ = true;
  // Weak: when the connection ends while it waits, its body is freed. request_ does not change
  // before the answer.
  PreparePool& pool = service.WaitsForDisk(request_) ? parts_.disk : parts_.prepare;
  pool.Run(service.TenantOf(request_), service.WorkBytes(request_),
           [weak = weak_from_this(), turn = turn_](MemoryQuota& quota) {
             if (const auto self = weak.lock()) self->Prepare(turn, quota);
           });
  host_.WatchClient();
}

void Exchange::Prepare(const Service::SessionTurn& turn, MemoryQuota& quota) noexcept {
  const std::shared_ptr<ExchangeHost> host = weak_host_.lock();
  if (!host || gone_.load(std::memory_order_relaxed)) return;
  bool made = false;
  RunQuietly([&] {
    prepared_.outcome = parts_.service.Prepare(request_, quota, &prepared_.share, turn);
    made = true;
  });
  if (made && std::holds_alternative<LaterAnswer>(prepared_.outcome)) {
    // Here, because it may take long, and whether or not the client still waits.
    const Prepared prepared = std::move(prepared_);  // the answer may be there before this ends
    made = false;
    RunQuietly([&] {
      std::get<LaterAnswer>(prepared.outcome).begin(ReplyLater());
      made = true;
    });
    if (made) return;
  }
  UntilDone([&] {
    boost::asio::post(strand_, [host, self = shared_from_this(), made] {
      Prepared prepared = std::move(self->prepared_);
      if (self->is_over_) return self->DropUnbegun(prepared.outcome);
      if (!made) return host->Close();
      self->RunStep([&] { self->Reply(std::move(prepared)); });
    });
  });
}

// Makes the function that gives an answer to Reply, on the strand.
LaterAnswer::Reply Exchange::ReplyLater() {
  return [weak = weak_from_this()](HttpResponse response) {
    const std::shared_ptr<Exchange> self = weak.lock();
    if (!self) return;
    self->Soon([raw = self.get(), response = std::move(response)]() mutable {
      raw->Reply({{}, std::move(response)});
    });
  };
}

void Exchange::Reply(Prepared prepared) {
  Outcome& outcome = prepared.outcome;
  awaiting_ = false;
  std::string().swap(request_.body);  // an assignment would keep its memory
  memory_.body.Hold(0);
  turn_.reset();  // an outcome that still needs it has it
  if (auto* response = std::get_if<HttpResponse>(&outcome)) return Respond(std::move(*response));
  if (auto* start = std::get_if<GenerationStart>(&outcome)) {
    return Generate(std::move(*start), std::move(prepared.share));
  }
  awaiting_ = true;
  std::get<LaterAnswer>(outcome).begin(ReplyLater());
  host_.WatchClient();
}

// --- generating

// Ends a generation that has not begun and whose client is gone.
void Exchange::DropUnbegun(Outcome& outcome) noexcept {
  auto* start = std::get_if<GenerationStart>(&outcome);
  if (start) RunQuietly([&] { AnswerOf(std::move(*start))->Cancel(); });
}

std::shared_ptr<RunningAnswer> Exchange::AnswerOf(GenerationStart start) {
  const std::string tenant = start.tenant;
  return std::make_shared<RunningAnswer>(std::move(start), parts_.service.engine(),
                                         weak_from_this(),
                                         [rates = parts_.service.rates(), tenant](uint64_t tokens) {
                                           rates->TakeTokens(tenant, tokens);
                                         });
}

// Starts the generation. Keeps `share` until the engine has the requests.
void Exchange::Generate(GenerationStart start, QuotaShare share) {
  const uint64_t bytes = start.answer_bytes;
  answer_ = AnswerOf(std::move(start));
  // Its key may have been removed while it was prepared.
  if (parts_.service.TenantOf(request_) != answer_->tenant()) return OnAnswerError(KeyRevoked());
  if (!memory_.answer.Hold(bytes)) {
    return OnAnswerError(
        {Code::kExhausted, fmt::format("running and unsent answers leave no room for an "
                                       "answer of {} bytes; try again later",
                                       bytes)});
  }
  answer_->Start(std::move(share));
  if (!answer_) return;  // the engine has refused it
  AwaitPing();
  host_.WatchClient();
}

void Exchange::Post(std::function<void()> step) {
  const std::shared_ptr<ExchangeHost> host = weak_host_.lock();
  if (!host) return;
  boost::asio::post(
      strand_, [host, self = shared_from_this(), step = std::move(step)] { self->RunStep(step); });
}

void Exchange::Run(SlowWork kind, const std::string& tenant, size_t bytes,
                   std::function<void(MemoryQuota&)> work) {
  PreparePool& pool = kind == SlowWork::kDisk      ? parts_.disk
                      : kind == SlowWork::kGrammar ? parts_.grammars
                                                   : parts_.prepare;
  pool.Run(tenant, bytes, std::move(work));
}

void Exchange::OnAnswer(const std::string& text) {
  if (!answer_) return;
  const WrittenAnswer& written = answer_->written();
  if (!written.streams() && !memory_.answer.HoldMore(written.held_bytes())) {
    CancelAnswer();
    return Respond(NoRoomToAnswer());
  }
  if (!text.empty()) {
    if (!begun_) BeginStream();
    writer_.PutStreamText(text);
    Send();
    AwaitPing();
  }
  if (!answer_ || !written.done()) return;  // absent: a failed write has closed the connection
  told_ = std::move(answer_);
  RunQuietly([&] { told_->PrepareNext(); });  // the answer does not depend on it
  parts_.service.Count(told_->tenant(), written.answer());
  if (log_) log_->Told(written.answer());
  if (written.streams()) return EndStream();
  HttpResponse response;
  response.rest = written.Body();
  response.rest_bytes = written.held_bytes();
  Respond(std::move(response));
}

// Ends the answer with an error: a response, or the last event of a stream that has begun.
void Exchange::OnAnswerError(const Error& error) {
  if (!answer_) return;
  const std::string event = answer_->written().ErrorEvent(error);
  CancelAnswer();
  if (!begun_) return Respond(ErrorResponse(error));
  keep_alive_ = false;
  if (log_) log_->Refused(RefusalOf(error));
  writer_.PutStreamText(event);
  EndStream();
}

HttpResponse Exchange::NoRoomToAnswer() {
  parts_.service.CountRejection(RejectReason::kMemory);
  return ErrorResponse(
      {Code::kUnavailable,
       "answers that clients have not read leave no memory for this one; try again"});
}

void Exchange::CheckKey() {
  if (answer_ && parts_.service.TenantOf(request_) != answer_->tenant()) {
    OnAnswerError(KeyRevoked());
  }
}

// Sends something now and then in a stream that is silent.
void Exchange::AwaitPing() {
  if (!answer_ || !answer_->written().streams() || parts_.options.sse_ping_s == 0) return;
  ping_.expires_after(std::chrono::seconds(parts_.options.sse_ping_s));
  ping_.async_wait([weak = weak_from_this(), weak_host = weak_host_](boost::system::error_code ec) {
    const std::shared_ptr<ExchangeHost> host = weak_host.lock();
    const std::shared_ptr<Exchange> self = weak.lock();
    if (ec || !host || !self || self->is_over_) return;
    self->RunStep([&] { self->Ping(); });
  });
}

void Exchange::Ping() {
  if (!answer_) return;
  if (!writer_.writing() && answer_->generates()) {
    if (!begun_) BeginStream();
    writer_.PutStreamText(answer_->written().PingEvent());
    Send();
  }
  AwaitPing();
}

void Exchange::CancelAnswer() {
  is_over_ = true;
  if (const auto answer = std::exchange(answer_, nullptr)) answer->Cancel();
}

// --- sending

std::string Exchange::Head(int status, std::string_view content_type) {
  if (log_) log_->set_status(status);
  const AfterAnswer after = keep_alive_ ? AfterAnswer::kKeepAlive : AfterAnswer::kClose;
  return HeadText(status, content_type, after, parts_.service.CommonHeaders(request_));
}

void Exchange::BeginStream() {
  begun_ = true;
  if (!writer_.frames()) keep_alive_ = false;
  writer_.PutStreamHead(Head(200, answer_->written().writer().StreamType()));
}

void Exchange::EndStream() {
  writer_.PutStreamEnd();
  Send();
}

void Exchange::Respond(HttpResponse response) {
  if (host_.is_finishing()) keep_alive_ = false;
  parts_.service.ShapeError(request_, &response);
  ResponseWriter::Gather(&response);
  if (!response.rest) told_.reset();
  const uint64_t bytes = response.rest ? response.rest_bytes : response.body.size();
  if (!memory_.answer.Hold(bytes) && !(response.is_metrics && memory_.metrics.Hold(bytes))) {
    response = NoRoomToAnswer();
    parts_.service.ShapeError(request_, &response);
  }
  if (response.rest && !writer_.frames()) keep_alive_ = false;
  const std::string head = Head(response.status, response.content_type);
  if (log_ && response.refusal) log_->Refused(*response.refusal);
  writer_.Put(head, std::move(response));
  Send();
}

void Exchange::Send() {
  if (answer_ && begun_ && !HoldUnsent()) return host_.Close();
  host_.Send();
}

// Holds memory for the unsent bytes of a stream.
bool Exchange::HoldUnsent() {
  const uint64_t bytes = writer_.held_bytes();
  return bytes <= kMaxUnsentBytes && memory_.answer.Hold(answer_->written().held_bytes() + bytes);
}

void Exchange::OnSent() {
  if (answer_ && begun_) HoldUnsent();
}

// --- ending

bool Exchange::End() {
  is_over_ = true;
  WriteLog("");
  DropAnswer();
  return keep_alive_;
}

void Exchange::Cut(bool is_answering) noexcept {
  gone_.store(true, std::memory_order_relaxed);
  // A client that disconnects when the whole answer is on its way loses nothing.
  if (is_answering) {
    RunQuietly([&] { WriteLog(writer_.all_in_flight() ? "" : " (the client is gone)"); });
  }
  RunQuietly([&] { CancelAnswer(); });  // if this fails, they end by themselves
  RunQuietly([&] { turn_.reset(); });
  RunQuietly([&] { ping_.cancel(); });
  memory_.body.Hold(0);
  DropAnswer();
}

void Exchange::DropAnswer() {
  writer_.DropParts();
  told_.reset();
  memory_.answer.Hold(0);
  memory_.metrics.Hold(0);
}

void Exchange::WriteLog(std::string_view remark) {
  if (!parts_.options.on_request || !log_) return;
  const std::string line = log_->Line(host_.PeerAddress(), remark);
  if (!line.empty()) parts_.options.on_request(line);
  log_.reset();
}

}  // namespace kvasir
