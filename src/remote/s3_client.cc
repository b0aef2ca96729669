#include "remote/s3_client.h"

#include <arpa/inet.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/digest.h"
#include "base/hex.h"
#include "base/result.h"
#include "remote/s3_reply.h"
#include "remote/s3_transfer.h"

namespace kvasir {
namespace {

constexpr size_t kListedAtOnce = 500;
constexpr int kPollMs = 10;
constexpr const char* kNoPayload =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

// Returns the header as libcurl sends it: without the port that the scheme has anyway.
std::string HostHeaderOf(const RemoteAddress& address) {
  const bool is_v6 = address.host.find(':') != std::string::npos;
  const std::string host = is_v6 ? "[" + address.host + "]" : address.host;
  const bool is_usual = address.port == (address.has_tls ? 443 : 80);
  return is_usual ? host : fmt::format("{}:{}", host, address.port);
}

std::string HashOf(std::span<const std::byte> value) {
  return ToHex(Sha256().Update(value).Finish());
}

// "HOST:PORT:ADDRESS,ADDRESS", as libcurl wants it.
std::string ResolveLine(const RemoteAddress& address, const SocketAddresses& at) {
  std::string line = fmt::format("{}:{}:", address.host, address.port);
  const size_t begin = line.size();
  for (const SocketAddress& one : at) {
    char text[INET6_ADDRSTRLEN] = "";
    const bool is_v6 = one.bytes.ss_family == AF_INET6;
    const void* const bytes =
        is_v6
            ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(one.bytes).sin6_addr)
            : &reinterpret_cast<const sockaddr_in&>(one.bytes).sin_addr;
    if (inet_ntop(one.bytes.ss_family, bytes, text, sizeof(text)) == nullptr) continue;
    line += fmt::format("{}{}{}{}", line.size() == begin ? "" : ",", is_v6 ? "[" : "", text,
                        is_v6 ? "]" : "");
  }
  return line;
}

// Loads libcurl. kIoError: it is missing or too old.
Result<const CurlLibrary*> LoadCurl() {
  const CurlLibrary* const library = LoadCurlLibrary();
  if (library != nullptr && library->is_new_enough() && library->has_multi) return library;
  return FailField(Code::kIoError, "remote",
                   "an S3 store needs libcurl (libcurl.so.4) of 7.85 or newer: install it (Debian: "
                   "apt-get install libcurl4)");
}

}  // namespace

S3Client::S3Client(RemoteAddress address, S3Access access)
    : address_(std::move(address)), access_(std::move(access)) {}

S3Client::~S3Client() = default;

Result<std::unique_ptr<S3Client>> S3Client::Create(const RemoteAddress& address,
                                                   const S3Access& access) {
  KV_TRY(LoadCurl());
  return std::unique_ptr<S3Client>(new S3Client(address, access));
}

uint64_t S3Client::BytesFor(const RemoteAddress& address) {
  constexpr uint64_t kTransferBytes = 65536, kListBytes = uint64_t{1} << 20;
  // A transfer's session and its context; the certificates that are trusted (Debian's 142 take 0.8
  // MB).
  constexpr uint64_t kTlsBytes = 131072, kTrustBytes = uint64_t{2} << 20;
  const uint64_t plain = kTransfers * kTransferBytes + kListBytes;
  return plain + (address.has_tls ? kTransfers * kTlsBytes + kTrustBytes : 0);
}

Status S3Client::Open(const SocketAddresses& at, const Waits&) {
  Close();
  KV_ASSIGN(const CurlLibrary* const library, LoadCurl());
  auto sockets = std::make_unique<Sockets>(*library);
  sockets->resolve = library->append(nullptr, ResolveLine(address_, at).c_str());
  const auto most = static_cast<long>(kTransfers);
  if (sockets->multi == nullptr || sockets->resolve == nullptr ||
      library->multi_setopt(sockets->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, most) != CURLM_OK ||
      library->multi_setopt(sockets->multi, CURLMOPT_MAXCONNECTS, most) != CURLM_OK ||
      library->multi_setopt(sockets->multi, CURLMOPT_PIPELINING, CURLPIPE_NOTHING) != CURLM_OK) {
    return Fail(Code::kIoError, "libcurl cannot be initialised");
  }
  sockets_ = std::move(sockets);
  return {};
}

void S3Client::Close() {
  sockets_.reset();
  seen_.clear();
}

tl::unexpected<Error> S3Client::Closed(Error error) {
  Close();
  return tl::unexpected(std::move(error));
}

S3Client::Task S3Client::TaskOf(StoreRequest request) const {
  const S3Bucket& bucket = *address_.s3;
  Task task;
  AwsRequest& http = task.http;
  http.path = (bucket.is_in_host ? "/" : "/" + bucket.name + "/") + bucket.prefix + request.name;
  http.payload_sha256 = kNoPayload;
  http.headers.emplace_back("host", HostHeaderOf(address_));
  switch (request.what) {
    case StoreRequest::What::kGet:
      http.method = "GET";
      break;
    case StoreRequest::What::kPeek:
      http.method = "GET";
      http.headers.emplace_back("range", fmt::format("bytes=0-{}", request.into.size() - 1));
      break;
    case StoreRequest::What::kFind:
      http.method = "HEAD";
      break;
    case StoreRequest::What::kPutNew:
      http.headers.emplace_back("if-none-match", "*");
      [[fallthrough]];
    case StoreRequest::What::kPut:
      http.method = "PUT";
      http.payload_sha256 = HashOf(request.value);
      break;
    case StoreRequest::What::kRemove:
      http.method = "DELETE";
      break;
  }
  task.request = std::move(request);
  return task;
}

S3Client::Task S3Client::ListTask(const std::string& below, const std::string& after,
                                  size_t most) const {
  const S3Bucket& bucket = *address_.s3;
  Task task;
  task.kind = Task::Kind::kList;
  task.http.method = "GET";
  task.http.path = bucket.is_in_host ? "/" : "/" + bucket.name;
  task.http.query = {
      {"list-type", "2"}, {"max-keys", std::to_string(most)}, {"prefix", bucket.prefix + below}};
  if (!after.empty()) task.http.query.emplace_back("start-after", bucket.prefix + after);
  task.http.payload_sha256 = kNoPayload;
  task.http.headers.emplace_back("host", HostHeaderOf(address_));
  return task;
}

Status S3Client::Start(StoreRequest request, const Waits&) {
  if (!is_open()) return Fail(Code::kIoError, "the connection is closed");
  sockets_->waiting.push_back(TaskOf(std::move(request)));
  return {};
}

Status S3Client::BeginTasks() {
  while (!sockets_->waiting.empty() && sockets_->transfers.size() < kTransfers) {
    auto transfer =
        std::make_unique<Transfer>(sockets_->library, std::move(sockets_->waiting.front()));
    sockets_->waiting.pop_front();
    KV_TRY(transfer->Set(address_, access_, sockets_->resolve));
    if (sockets_->library.multi_add_handle(sockets_->multi, transfer->easy) != CURLM_OK) {
      return Fail(Code::kIoError, "libcurl cannot begin a transfer");
    }
    sockets_->transfers.push_back(std::move(transfer));
  }
  return {};
}

Result<std::unique_ptr<S3Client::Transfer>> S3Client::NextEnded(const Waits& waits) {
  for (;;) {
    if (!is_open()) return Fail(Code::kIoError, "the connection is closed");
    if (Status begun = BeginTasks(); !begun) return Closed(std::move(begun).error());
    KV_CHECK(!sockets_->transfers.empty());
    const CurlLibrary& library = sockets_->library;
    int num_running = 0, num_left = 0;
    bool is_sound = library.multi_perform(sockets_->multi, &num_running) == CURLM_OK;
    if (const CURLMsg* const told = library.multi_info_read(sockets_->multi, &num_left)) {
      const CURLcode code = told->data.result;
      auto transfer = sockets_->Take(told->easy_handle);
      const bool is_answer = transfer->has_response(code);
      if (is_answer && transfer->status < kLeastPassing) return transfer;
      if (!std::exchange(transfer->task.is_again, true)) {
        sockets_->waiting.push_front(std::move(transfer->task));
        continue;
      }
      if (is_answer) return transfer;
      const char* const message = transfer->message.data();
      return Closed({Code::kIoError, *message != '\0' ? message : library.strerror(code)});
    }
    if (!waits()) return Closed({Code::kCancelled, "the store takes too long"});
    if (is_sound) {
      is_sound = library.multi_poll(sockets_->multi, nullptr, 0, kPollMs, nullptr) == CURLM_OK;
    }
    if (!is_sound) return Closed({Code::kIoError, "libcurl cannot go on"});
  }
}

Result<std::unique_ptr<S3Client::Transfer>> S3Client::Do(Task task, const Waits& waits) {
  if (!is_open()) return Fail(Code::kIoError, "the connection is closed");
  sockets_->waiting.push_back(std::move(task));
  return NextEnded(waits);
}

Result<StoreReply> S3Client::Next(const Waits& waits) {
  KV_ASSIGN(const std::unique_ptr<Transfer> ended, NextEnded(waits));
  return ended->Reply();
}

Status S3Client::Ping(const Waits& waits) {
  KV_ASSIGN(const std::unique_ptr<Transfer> ended, Do(ListTask("kvasir/", "", 1), waits));
  if (ended->status != 200) return Fail(Code::kUnavailable, "{}", ended->Words());
  const auto list = ReadS3List(ended->text, 1);
  if (!list) return Closed(list.error());
  return {};
}

Result<StoreReply> S3Client::Watch(const std::string& name, std::span<std::byte> into,
                                   const Waits& waits) {
  seen_.clear();
  KV_ASSIGN(const std::unique_ptr<Transfer> ended,
            Do(TaskOf({.what = StoreRequest::What::kPeek, .name = name, .into = into}), waits));
  StoreReply reply = ended->Reply();
  const bool is_there = reply.is_done() || reply.outcome == StoreReply::Outcome::kForeign;
  if (is_there && ended->status == 416) {  // it names no ETag
    KV_ASSIGN(const std::unique_ptr<Transfer> head,
              Do(TaskOf({.what = StoreRequest::What::kFind, .name = name}), waits));
    seen_ = head->etag;
  } else if (is_there) {
    seen_ = ended->etag;
  }
  if (is_there && seen_.empty()) {
    return Closed({Code::kCorruption, "the store names no ETag of what it has"});
  }
  return reply;
}

Result<bool> S3Client::Replace(const std::string& name, std::span<const std::byte> value,
                               const Waits& waits) {
  Task task = TaskOf({.what = StoreRequest::What::kPut, .name = name, .value = value});
  task.http.headers.emplace_back(seen_.empty() ? "if-none-match" : "if-match",
                                 seen_.empty() ? "*" : seen_);
  KV_ASSIGN(const std::unique_ptr<Transfer> ended, Do(std::move(task), waits));
  const bool is_changed =
      ended->status == 412 || ended->status == 409 || (ended->status == 404 && !seen_.empty());
  seen_.clear();
  if (ended->status >= 200 && ended->status < 300) return true;
  if (is_changed && !ended->Words().starts_with("NoSuchBucket")) return false;
  return Fail(Code::kUnavailable, "{}", ended->Words());
}

Result<StorePage> S3Client::List(const std::string& below, const std::string& page,
                                 const Waits& waits) {
  KV_ASSIGN(const std::unique_ptr<Transfer> ended, Do(ListTask(below, page, kListedAtOnce), waits));
  if (ended->status != 200) return Fail(Code::kUnavailable, "{}", ended->Words());
  auto list = ReadS3List(ended->text, kListedAtOnce);
  if (!list) return Closed(std::move(list).error());
  const std::string& prefix = address_.s3->prefix;
  StorePage found;
  for (std::string& name : list->names) {
    if (!name.starts_with(prefix + below)) {
      return Closed({Code::kCorruption, "the store lists a name that was not asked for"});
    }
    found.names.push_back(name.substr(prefix.size()));
  }
  if (!list->is_cut) return found;
  // The next page begins after the last name of this one.
  if (found.names.empty()) {
    return Closed(
        {Code::kCorruption, "the store's list goes on, and its first part names nothing"});
  }
  found.next = found.names.back();
  return found;
}

}  // namespace kvasir
