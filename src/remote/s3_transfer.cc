#include "remote/s3_transfer.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/ascii.h"
#include "base/clock.h"
#include "base/result.h"
#include "remote/s3_reply.h"

namespace kvasir {
namespace {

constexpr size_t kMostHeaders = 32768, kMostError = 16384, kMostList = size_t{512} << 10;
constexpr size_t kMostEtag = 256;
constexpr long kBufferBytes = 16384;

using Outcome = StoreReply::Outcome;
using What = StoreRequest::What;

template <typename Transfer>
size_t OnS3Header(char* line, size_t, size_t bytes, void* transfer) {
  return static_cast<Transfer*>(transfer)->TakeHeader({line, bytes});
}
template <typename Transfer>
size_t OnS3Body(char* data, size_t, size_t bytes, void* transfer) {
  return static_cast<Transfer*>(transfer)->TakeBody({data, bytes});
}
template <typename Transfer>
size_t OnS3Upload(char* room, size_t size, size_t items, void* transfer) {
  return static_cast<Transfer*>(transfer)->GiveBody({room, size * items});
}
template <typename Transfer>
int OnS3Seek(void* transfer, curl_off_t to, int origin) {
  const bool is_done = origin == SEEK_SET && static_cast<Transfer*>(transfer)->SeekBody(to);
  return is_done ? CURL_SEEKFUNC_OK : CURL_SEEKFUNC_FAIL;
}

std::string EndpointOf(const RemoteAddress& address) {
  const bool is_v6 = address.host.find(':') != std::string::npos;
  return fmt::format("{}://{}{}{}:{}", address.has_tls ? "https" : "http", is_v6 ? "[" : "",
                     address.host, is_v6 ? "]" : "", address.port);
}

}  // namespace

S3Client::Transfer::Transfer(const CurlLibrary& curl, Task begun)
    : library(curl), task(std::move(begun)), easy(curl.easy_init()) {}

S3Client::Transfer::~Transfer() {
  library.free_all(headers);
  if (easy != nullptr) library.easy_cleanup(easy);
}

Status S3Client::Transfer::Set(const RemoteAddress& address, const S3Access& access,
                               curl_slist* resolve) {
  CURLcode code = easy != nullptr ? CURLE_OK : CURLE_OUT_OF_MEMORY;
  const auto set = [&](CURLoption option, auto value) {
    if (code == CURLE_OK) code = library.easy_setopt(easy, option, value);
  };
  const AwsHeaders signed_headers =
      SignedHeaders(task.http, access.credentials, address.s3->region, AwsTime(UnixS()));
  for (const auto& [name, value] : signed_headers) {
    if (name == "host") continue;  // libcurl sends the same
    const std::string line = name + ": " + value;
    curl_slist* const more = library.append(headers, line.c_str());
    if (more == nullptr) code = CURLE_OUT_OF_MEMORY;
    if (more != nullptr) headers = more;
  }
  const std::string url = EndpointOf(address) + AwsTarget(task.http);
  const char* const protocol = address.has_tls ? "https" : "http";
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PROTOCOLS_STR, protocol);
  set(CURLOPT_PATH_AS_IS, 1L);
  set(CURLOPT_NOPROXY, "*");
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_RESOLVE, resolve);
  set(CURLOPT_HTTPHEADER, headers);
  set(CURLOPT_USERAGENT, "kvasir");
  set(CURLOPT_BUFFERSIZE, kBufferBytes);
  set(CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
  set(CURLOPT_ERRORBUFFER, message.data());
  set(CURLOPT_PRIVATE, this);
  set(CURLOPT_HEADERDATA, this);
  set(CURLOPT_HEADERFUNCTION, &OnS3Header<Transfer>);
  set(CURLOPT_WRITEDATA, this);
  set(CURLOPT_WRITEFUNCTION, &OnS3Body<Transfer>);
  if (address.has_tls) {
    // Connections of a client share the certificates of one file (libcurl 7.87 and newer). With a
    // folder beside it, each would read all of them: 0.8 MB and some 25 ms.
    const bool has_file =
        !access.ca_file.empty() || library.version_info(CURLVERSION_NOW)->cainfo != nullptr;
    if (!access.ca_file.empty()) set(CURLOPT_CAINFO, access.ca_file.c_str());
    if (has_file) set(CURLOPT_CAPATH, static_cast<const char*>(nullptr));
  }
  if (task.http.method == "PUT") {
    set(CURLOPT_UPLOAD, 1L);
    set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(task.request.value.size()));
    set(CURLOPT_READDATA, this);
    set(CURLOPT_READFUNCTION, &OnS3Upload<Transfer>);
    set(CURLOPT_SEEKDATA, this);
    set(CURLOPT_SEEKFUNCTION, &OnS3Seek<Transfer>);
    // A store that has something against it says so; the value does not wait for a store that is
    // slow to ask for it.
    set(CURLOPT_EXPECT_100_TIMEOUT_MS, 1L);
  } else if (task.http.method == "HEAD") {
    set(CURLOPT_NOBODY, 1L);
  } else {
    set(CURLOPT_CUSTOMREQUEST, task.http.method.c_str());
  }
  if (code == CURLE_OK) return {};
  return Fail(Code::kIoError, "libcurl {} refuses an option: {}", library.version().version,
              library.strerror(code));
}

size_t S3Client::Transfer::TakeHeader(std::string_view line) {
  constexpr std::string_view kVersion = "HTTP/", kEtag = "etag:";
  if (line.starts_with(kVersion)) {
    const size_t space = std::min(line.find(' '), line.size() - 1);
    status = 0;
    std::from_chars(line.data() + space + 1, line.data() + line.size(), status);
  }
  num_headers += line.size();
  if (num_headers > kMostHeaders) return 0;
  if (line.size() > kEtag.size() && LowerAscii(line.substr(0, kEtag.size())) == kEtag) {
    std::string_view value = line.substr(kEtag.size());
    const size_t begin = value.find_first_not_of(' ');
    const size_t end = value.find_last_not_of(" \r\n");
    if (begin == std::string_view::npos || end == std::string_view::npos) return line.size();
    value = value.substr(begin, end + 1 - begin);
    if (value.size() <= kMostEtag) etag = value;
  }
  return line.size();
}

size_t S3Client::Transfer::TakeBody(std::span<const char> bytes) {
  const bool is_good = status == 200 || status == 206;
  if (is_good && !task.request.into.empty()) {
    const std::span<std::byte> room = task.request.into.subspan(got);
    if (bytes.size() > room.size()) {
      is_too_long = true;
      return 0;
    }
    std::memcpy(room.data(), bytes.data(), bytes.size());
    got += bytes.size();
    return bytes.size();
  }
  const size_t most = is_good && task.kind == Task::Kind::kList ? kMostList : kMostError;
  if (text.size() + bytes.size() > most) {
    is_too_long = true;
    return 0;
  }
  text.append(bytes.data(), bytes.size());
  return bytes.size();
}

size_t S3Client::Transfer::GiveBody(std::span<char> room) {
  const std::span<const std::byte> left = task.request.value.subspan(sent);
  const size_t bytes = std::min(left.size(), room.size());
  if (bytes > 0) std::memcpy(room.data(), left.data(), bytes);
  sent += bytes;
  return bytes;
}

bool S3Client::Transfer::SeekBody(curl_off_t to) {
  if (to < 0 || static_cast<size_t>(to) > task.request.value.size()) return false;
  sent = static_cast<size_t>(to);
  return true;
}

std::string S3Client::Transfer::Words() const { return S3ErrorWords(status, text); }

StoreReply S3Client::Transfer::Reply() const {
  StoreReply reply{.id = task.request.id};
  const bool is_read = task.request.what == What::kGet || task.request.what == What::kPeek;
  const std::string words = Words();
  if (status >= 200 && status < 300) {
    if (is_read && is_too_long) reply.outcome = Outcome::kForeign;
    if (is_read && !is_too_long) reply.bytes = got;
    return reply;
  }
  // A missing bucket is another 404, which a HEAD cannot tell.
  const bool is_missing = status == 404 && !words.starts_with("NoSuchBucket");
  const bool is_changed = (status == 412 || status == 409) && task.request.what == What::kPutNew;
  if (status == 416 && task.request.what == What::kPeek) {
    reply.outcome = Outcome::kForeign;  // it is there, and empty
  } else if (is_changed || (is_missing && task.http.method != "PUT")) {
    reply.outcome = Outcome::kNot;
  } else {
    reply.outcome = Outcome::kRefused;
    reply.is_passing = status >= kLeastPassing;
    reply.words = words;
  }
  return reply;
}

S3Client::Sockets::~Sockets() {
  while (!transfers.empty()) Take(transfers.back()->easy);
  if (multi != nullptr) library.multi_cleanup(multi);
  library.free_all(resolve);
}

std::unique_ptr<S3Client::Transfer> S3Client::Sockets::Take(CURL* easy) {
  library.multi_remove_handle(multi, easy);
  const auto found =
      std::ranges::find_if(transfers, [&](const auto& one) { return one->easy == easy; });
  auto transfer = std::move(*found);
  transfers.erase(found);
  return transfer;
}

}  // namespace kvasir
