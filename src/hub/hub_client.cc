#include "hub/hub_client.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/hex.h"
#include "base/result.h"

namespace kvasir::hub {
namespace {

constexpr uint64_t kMaxListingBytes = uint64_t{64} << 20;
constexpr uint32_t kMaxRetries = 4, kFirstPauseMs = 500, kMaxPauseMs = 60'000;
constexpr int kRangeNotSatisfiable = 416, kTooManyRequests = 429, kRequestTimeout = 408;

// Keeps a small response in memory.
class TextReceiver : public Receiver {
 public:
  uint64_t offset() const override { return 0; }
  Status Restart() override {
    text_.clear();
    return {};
  }
  Status Take(std::span<const std::byte> bytes) override {
    if (bytes.size() > kMaxListingBytes - text_.size()) {
      return Fail(Code::kCorruption, "the hub's list of files has more than {} bytes",
                  kMaxListingBytes);
    }
    text_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return {};
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

bool IsDone(const HttpReply& reply) {
  return reply.failure.empty() && (reply.status == 200 || reply.status == 206);
}

bool IsTransient(const HttpReply& reply) {
  const int status = reply.status;
  if (!reply.failure.empty()) return !reply.is_final;
  return status == kTooManyRequests || status == kRequestTimeout || status >= 500;
}

std::string ReasonOf(const HttpReply& reply) {
  return reply.failure.empty() ? fmt::format("the hub answers {}", reply.status) : reply.failure;
}

void PauseBefore(uint32_t retry, const HttpReply& reply) {
  uint32_t pause_ms = kFirstPauseMs << (retry - 1);
  if (reply.retry_after_s) pause_ms = std::min(*reply.retry_after_s, kMaxPauseMs / 1000) * 1000;
  std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
}

// Escapes a text for a URL: bytes become %XX, except those that need not (RFC 3986) and `also`.
std::string Escape(std::string_view text, std::string_view also) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  std::string escaped;
  for (const char c : text) {
    const bool is_plain = kPlain.find(c) != kPlain.npos || also.find(c) != also.npos;
    escaped += is_plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<uint8_t>(c));
  }
  return escaped;
}

// Prepares the receiver for the bytes of a response: a whole file replaces what came before.
Status Begin(const HttpReply& reply, std::string_view blob, Receiver& receiver) {
  const bool is_name = reply.etag.size() == blob.size() && IsHex(reply.etag);
  if (is_name && reply.etag != blob) {
    KV_TRY(receiver.Restart());
    return Fail(Code::kIoError,
                "the hub has another file now than it listed: {}, and not {}; pull again",
                reply.etag, blob);
  }
  if (reply.status == 200) return receiver.Restart();
  if (reply.range_begin == receiver.offset()) return {};
  return Fail(Code::kIoError,
              "the hub was asked for bytes from {} on, but sent bytes from another offset",
              receiver.offset());
}

}  // namespace

Result<std::unique_ptr<HubClient>> HubClient::Create(const HubSettings& settings) {
  KV_ASSIGN(std::unique_ptr<HttpClient> http, HttpClient::Create(settings));
  return std::unique_ptr<HubClient>(new HubClient(settings, std::move(http)));
}

HubClient::HubClient(const HubSettings& settings, std::unique_ptr<HttpClient> http)
    : settings_(settings), http_(std::move(http)) {}

Result<RepoListing> HubClient::List(const RepoRef& ref, const OnRetry& on_retry) {
  TextReceiver text;
  KV_TRY(Get(ref,
             "/api/models/" + ref.repo + "/revision/" + Escape(ref.Revision(), "") + "?blobs=true",
             "", text, on_retry));
  return ParseListing(text.text());
}

Status HubClient::Fetch(const RepoRef& ref, std::string_view commit, const HubFile& file,
                        BlobWriter& writer) {
  if (writer.is_whole()) return {};
  const std::string path =
      "/" + ref.repo + "/resolve/" + std::string(commit) + "/" + Escape(file.name, "/");
  Status got = Get(ref, path, file.blob, writer, {});
  if (!got) return Fail(got.error().code, "{}: {}", file.name, got.error().message);
  if (writer.is_whole()) return {};
  return Fail(Code::kIoError,
              "{}: the hub sent {} of the {} bytes that it lists; pull again to fetch the rest",
              file.name, writer.offset(), file.size_bytes);
}

Status HubClient::Get(const RepoRef& ref, const std::string& path, std::string_view blob,
                      Receiver& receiver, const OnRetry& on_retry) {
  const std::string url = settings_.endpoint + path;
  uint64_t most_bytes = receiver.offset();
  for (uint32_t retry = 0;; ++retry) {
    const uint64_t before = receiver.offset();
    KV_ASSIGN(const HttpReply reply, GetOnce(url, blob, receiver));
    if (IsDone(reply)) return {};
    // Only progress, so that a hub that cuts and restarts for ever is given up.
    if (receiver.offset() > most_bytes) retry = 0;
    most_bytes = std::max(most_bytes, receiver.offset());
    if (reply.status == kRangeNotSatisfiable && before > 0 && retry < kMaxRetries) {
      KV_TRY(receiver.Restart());
    } else if (!IsTransient(reply) || retry == kMaxRetries) {
      return Refused(ref, url, reply);
    } else {
      if (retry == 0 && on_retry) on_retry(ReasonOf(reply));
      PauseBefore(retry + 1, reply);
    }
  }
}

Result<HttpReply> HubClient::GetOnce(const std::string& url, std::string_view blob,
                                     Receiver& receiver) {
  bool has_begun = false;
  return http_->Get(url, receiver.offset(),
                    [&](const HttpReply& reply, std::span<const std::byte> bytes) -> Status {
                      if (!has_begun) KV_TRY(Begin(reply, blob, receiver));
                      has_begun = true;
                      return receiver.Take(bytes);
                    });
}

tl::unexpected<Error> HubClient::Refused(const RepoRef& ref, const std::string& url,
                                         const HttpReply& reply) const {
  const std::string page = settings_.endpoint + "/" + ref.repo;
  const int status = reply.status;
  if (!reply.failure.empty()) {
    return Fail(Code::kIoError, "{}: {}{}", url, reply.failure,
                reply.is_final ? "" : "; pull again to go on");
  }
  if (status == kTooManyRequests || status == kRequestTimeout || status >= 500) {
    return Fail(Code::kUnavailable, "{}: the hub answers {}{}; pull again later to go on", url,
                status, status == kTooManyRequests ? " (too many requests)" : "");
  }
  if (status == 403 || reply.error_code == "GatedRepo") {
    return Fail(
        Code::kPermissionDenied,
        "{} is gated (the hub answers {}): accept its conditions at {}, and set HF_TOKEN to "
        "a token that may read it ({}/settings/tokens)",
        ref.repo, status, page, settings_.endpoint);
  }
  if (status == 401 && settings_.token) {
    return Fail(Code::kPermissionDenied,
                "{}: the hub refuses the token (401): it is no longer valid, or the model does not "
                "exist; check HF_TOKEN ({}/settings/tokens) and {}",
                ref.repo, settings_.endpoint, page);
  }
  if (status == 401) {
    return Fail(
        Code::kPermissionDenied,
        "{}: the hub has no such public model (401): check the name at {}; for a private one "
        "set HF_TOKEN ({}/settings/tokens)",
        ref.repo, page, settings_.endpoint);
  }
  if (status == 404) {
    return Fail(Code::kNotFound, "{}: the hub has no such model or revision (404): check {}",
                RepoRef{ref.repo, ref.revision, {}}.Text(), page);
  }
  return Fail(Code::kIoError, "{}: the hub answers {}", url, status);
}

}  // namespace kvasir::hub
