#include "load/client.h"

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/result.h"
#include "load/sse.h"

namespace kvasir::load {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

// One request and its answer over a separate connection. Lives until `on_end` was called.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(asio::io_context& io, bool whole, Sample& sample, std::function<void()> on_end)
      : socket_(io), whole_(whole), sample_(sample), on_end_(std::move(on_end)) {
    parser_.body_limit(boost::none);
  }

  void Start(const tcp::resolver::results_type& server, http::request<http::string_body> request) {
    request_ = std::move(request);
    asio::async_connect(socket_, server, [self = shared_from_this()](ErrorCode error, const auto&) {
      if (error) return self->End();
      self->socket_.set_option(tcp::no_delay(true), error);
      self->Write();
    });
  }

 private:
  void Write() {
    http::async_write(socket_, request_, [self = shared_from_this()](ErrorCode error, size_t) {
      // A server that refuses early may close before it has read all.
      self->ReadHead(error);
    });
  }

  void ReadHead(ErrorCode) {
    http::async_read_header(socket_, buffer_, parser_,
                            [self = shared_from_this()](ErrorCode error, size_t) {
                              if (error) return self->End();
                              self->sample_.status = self->parser_.get().result_int();
                              self->ReadBody();
                            });
  }

  void ReadBody() {
    if (parser_.is_done()) return End();
    http::async_read_some(socket_, buffer_, parser_,
                          [self = shared_from_this()](ErrorCode error, size_t) {
                            self->TakeBody();
                            if (error) return self->End();
                            self->ReadBody();
                          });
  }

  void TakeBody() {
    std::string& body = parser_.get().body();
    if (whole_) {
      if (!parser_.is_done()) return;
      if (sample_.status == 200) AddWhole(body, MonotonicNs(), sample_);
    } else if (sample_.status == 200) {
      const uint64_t now_ns = MonotonicNs();
      events_.Feed(body, [&](std::string_view data) { AddEvent(data, now_ns, sample_); });
    }
    body.clear();
  }

  void End() {
    TakeBody();
    sample_.end_ns = MonotonicNs();
    ErrorCode ignored;
    socket_.close(ignored);
    on_end_();
  }

  tcp::socket socket_;
  const bool whole_;
  Sample& sample_;
  const std::function<void()> on_end_;
  http::request<http::string_body> request_;
  boost::beast::flat_buffer buffer_;
  http::response_parser<http::string_body> parser_;
  SseReader events_;
};

// Sends the requests of each client one after another: all clients at their times, or a number of
// clients at once.
class Run {
 public:
  Run(const std::vector<LoadRequest>& requests, const RunOptions& options)
      : requests_(requests), options_(options), samples_(requests.size()) {
    std::map<uint32_t, size_t> at;
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto [found, is_new] = at.emplace(requests[i].client, chains_.size());
      if (is_new) chains_.emplace_back();
      chains_[found->second].push_back(i);
    }
  }

  Result<LoadResult> Go() {
    ErrorCode error;
    server_ = tcp::resolver(io_).resolve(options_.target.host, options_.target.port, error);
    tcp::socket probe(io_);
    if (!error) asio::connect(probe, server_, error);
    if (error) {
      return Fail(Code::kUnavailable, "{}:{} cannot be reached: {}; start the server first",
                  options_.target.host, options_.target.port, error.message());
    }
    probe.close(error);
    begin_ns_ = MonotonicNs();
    const size_t at_once = open_loop() ? chains_.size() : options_.concurrency;
    for (size_t i = 0; i < at_once; ++i) StartChain();
    Wait();
    LoadResult result{.seconds = static_cast<double>(last_end_ns_ - begin_ns_) * 1e-9};
    for (Sample& sample : samples_) {
      if (sample.due_ns > 0) result.samples.push_back(std::move(sample));
    }
    return result;
  }

 private:
  bool open_loop() const { return options_.concurrency == 0; }
  uint64_t DueNs(size_t index) const {
    return begin_ns_ + static_cast<uint64_t>(requests_[index].due_s * 1e9);
  }
  uint64_t UntilNs() const {
    if (options_.seconds <= 0) return std::numeric_limits<uint64_t>::max();
    return begin_ns_ + static_cast<uint64_t>(options_.seconds * 1e9);
  }

  // Waits until all have ended, or wait_s after the last time at which a request goes out.
  void Wait() {
    const auto wait_ns = static_cast<uint64_t>(options_.wait_s * 1e9);
    uint64_t last_ns = begin_ns_;
    for (size_t i = 0; i < requests_.size() && open_loop(); ++i) {
      last_ns = std::max(last_ns, std::min(DueNs(i), UntilNs()));
    }
    while (num_busy_ > 0) {
      const uint64_t now_ns = MonotonicNs();
      if (!open_loop()) last_ns = options_.seconds > 0 ? UntilNs() : last_end_ns_;
      if (now_ns > std::max(last_ns, begin_ns_) + wait_ns) break;
      io_.run_for(std::chrono::milliseconds(100));
      if (io_.stopped()) break;
    }
    if (last_end_ns_ == 0) last_end_ns_ = MonotonicNs();
  }

  void StartChain() {
    if (next_chain_ == chains_.size()) return;
    ++num_busy_;
    Next(next_chain_++, 0);
  }

  void Next(size_t chain, size_t at) {
    if (at == chains_[chain].size() || MonotonicNs() >= UntilNs()) return EndChain();
    const size_t index = chains_[chain][at];
    if (!open_loop()) return Send(chain, at, MonotonicNs());
    const uint64_t due_ns = DueNs(index), now_ns = MonotonicNs();
    if (due_ns >= UntilNs()) return EndChain();
    if (due_ns <= now_ns) return Send(chain, at, due_ns);
    auto timer = std::make_shared<asio::steady_timer>(io_);
    timer->expires_after(std::chrono::nanoseconds(due_ns - now_ns));
    timer->async_wait([this, timer, chain, at, due_ns](ErrorCode) { Send(chain, at, due_ns); });
  }

  void EndChain() {
    --num_busy_;
    if (!open_loop()) StartChain();
  }

  void Send(size_t chain, size_t at, uint64_t due_ns) {
    const size_t index = chains_[chain][at];
    const LoadRequest& request = requests_[index];
    Sample& sample = samples_[index];
    sample.tenant = request.tenant;
    sample.due_ns = due_ns;
    const Target& target = options_.target;
    http::request<http::string_body> message(
        http::verb::post, target.chat ? "/v1/chat/completions" : "/v1/completions", 11);
    message.set(http::field::host, target.host);
    message.set(http::field::content_type, "application/json");
    message.set(http::field::connection, "close");
    if (!target.api_keys.empty()) {
      const std::string& key = target.api_keys[request.tenant % target.api_keys.size()];
      message.set(http::field::authorization, "Bearer " + key);
    }
    message.body() = BodyOf(request, target);
    message.prepare_payload();
    const auto on_end = [this, chain, at] {
      last_end_ns_ = MonotonicNs();
      Next(chain, at + 1);
    };
    std::make_shared<Exchange>(io_, target.whole, sample, on_end)
        ->Start(server_, std::move(message));
  }

  const std::vector<LoadRequest>& requests_;
  const RunOptions& options_;
  std::vector<Sample> samples_;              // [requests]
  std::vector<std::vector<size_t>> chains_;  // [client]: its requests
  asio::io_context io_{1};
  tcp::resolver::results_type server_;
  uint64_t begin_ns_ = 0, last_end_ns_ = 0;
  size_t next_chain_ = 0, num_busy_ = 0;
};

}  // namespace

Result<LoadResult> RunLoad(const std::vector<LoadRequest>& requests, const RunOptions& options) {
  return Run(requests, options).Go();
}

std::string BodyOf(const LoadRequest& request, const Target& target) {
  nlohmann::json body = {{"temperature", target.temperature}, {"seed", request.seed}};
  if (!target.whole) {
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
  }
  if (!target.model.empty()) body["model"] = target.model;
  if (request.max_tokens > 0) body["max_tokens"] = request.max_tokens;
  if (request.to_the_end) body["ignore_eos"] = true;
  if (!target.chat) {
    body["prompt"] = request.prompt;
    return body.dump();
  }
  std::string words;
  for (const TokenId token : request.prompt) words += std::to_string(token) + " ";
  body["messages"] = {{{"role", "user"}, {"content", words}}};
  return body.dump();
}

Result<Target> ParseUrl(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  const auto wrong = [&] {
    return Fail(Code::kInvalidArgument, "--url: '{}' is not http://HOST[:PORT]", url);
  };
  if (!url.starts_with(kScheme)) return wrong();
  std::string rest = url.substr(kScheme.size());
  if (rest.ends_with('/')) rest.pop_back();
  const size_t colon = rest.rfind(':');
  Target target{.host = rest.substr(0, colon), .port = "80"};
  if (colon != rest.npos) target.port = rest.substr(colon + 1);
  const bool is_number = target.port.find_first_not_of("0123456789") == std::string::npos;
  if (target.host.empty() || target.port.empty() || !is_number ||
      target.host.find('/') != std::string::npos) {
    return wrong();
  }
  return target;
}

}  // namespace kvasir::load
