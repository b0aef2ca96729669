#include "hub/http_client.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/curl_library.h"
#include "base/result.h"

namespace kvasir::hub {
namespace {

constexpr long kMaxRedirects = 10, kConnectTimeoutS = 20, kStallS = 30, kLeastBytesPerS = 1;

// One transfer, as libcurl's callbacks see it.
struct Transfer {
  const HttpClient::Sink* sink;
  HttpReply reply;
  Status taken;
};

size_t OnHeader(char* line, size_t, size_t bytes, void* transfer) {
  TakeHeaderLine({line, bytes}, static_cast<Transfer*>(transfer)->reply);
  return bytes;
}

size_t OnBody(char* data, size_t, size_t bytes, void* opaque) {
  auto& transfer = *static_cast<Transfer*>(opaque);
  const int status = transfer.reply.status;
  if (status != 200 && status != 206) return bytes;  // a page about an error
  transfer.taken = (*transfer.sink)(transfer.reply, std::as_bytes(std::span(data, bytes)));
  return transfer.taken ? bytes : 0;  // 0 ends the transfer
}

bool WouldComeAgain(CURLcode code) {
  constexpr CURLcode kCodes[] = {CURLE_PEER_FAILED_VERIFICATION, CURLE_SSL_CACERT_BADFILE,
                                 CURLE_UNSUPPORTED_PROTOCOL, CURLE_TOO_MANY_REDIRECTS,
                                 CURLE_URL_MALFORMAT};
  return std::ranges::find(kCodes, code) != std::end(kCodes);
}

}  // namespace

struct HttpClient::Handle {
  const CurlLibrary* library;
  CURL* curl = library->easy_init();
  curl_slist* headers = nullptr;
  std::array<char, CURL_ERROR_SIZE> message{};
  Status set;

  explicit Handle(const CurlLibrary* loaded) : library(loaded) {}
  ~Handle() {
    library->free_all(headers);
    library->easy_cleanup(curl);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  void Header(const std::string& line) { headers = library->append(headers, line.c_str()); }
  // Keeps the first failure: what an option forbids must not be allowed because libcurl lacks it.
  template <typename T>
  void Set(CURLoption option, T value) {
    const CURLcode code = library->easy_setopt(curl, option, value);
    if (code == CURLE_OK || !set) return;
    set = Fail(Code::kIoError, "libcurl {} refuses its option {}: {}", library->version().version,
               static_cast<int>(option), library->strerror(code));
  }
};

Result<std::unique_ptr<HttpClient>> HttpClient::Create(const HubSettings& settings) {
  const CurlLibrary* const library = LoadCurlLibrary();
  if (library == nullptr) {
    return Fail(
        Code::kIoError,
        "libcurl (libcurl.so.4) cannot be loaded: install it (Debian: apt-get install libcurl4)");
  }
  if (!library->is_new_enough()) {
    return Fail(Code::kIoError, "libcurl is {}; 7.85 or newer is needed: install it",
                library->version().version);
  }
  auto handle = std::make_unique<Handle>(library);
  if (handle->curl == nullptr) return Fail(Code::kIoError, "libcurl cannot be initialised");
  // What libcurl knows as the header Authorization goes to no other host.
  if (settings.token) handle->Header("Authorization: Bearer " + *settings.token);
  handle->Header("Accept-Encoding: identity");
  handle->Set(CURLOPT_HTTPHEADER, handle->headers);
  handle->Set(CURLOPT_USERAGENT, "kvasir");
  handle->Set(CURLOPT_FOLLOWLOCATION, 1L);
  handle->Set(CURLOPT_MAXREDIRS, kMaxRedirects);
  const char* protocols = settings.endpoint.starts_with("https:") ? "https" : "http,https";
  handle->Set(CURLOPT_PROTOCOLS_STR, protocols);
  handle->Set(CURLOPT_REDIR_PROTOCOLS_STR, protocols);
  handle->Set(CURLOPT_CONNECTTIMEOUT, kConnectTimeoutS);
  handle->Set(CURLOPT_LOW_SPEED_LIMIT, kLeastBytesPerS);
  handle->Set(CURLOPT_LOW_SPEED_TIME, kStallS);
  handle->Set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  handle->Set(CURLOPT_ERRORBUFFER, handle->message.data());
  handle->Set(CURLOPT_HEADERFUNCTION, &OnHeader);
  handle->Set(CURLOPT_WRITEFUNCTION, &OnBody);
  // Plain http with a token stays on this machine: a proxy could read it.
  if (settings.token && settings.endpoint.starts_with("http:")) handle->Set(CURLOPT_NOPROXY, "*");
  if (settings.ca_file) handle->Set(CURLOPT_CAINFO, settings.ca_file->c_str());
  if (settings.ca_folder) handle->Set(CURLOPT_CAPATH, settings.ca_folder->c_str());
  if (!handle->set) return tl::unexpected(std::move(handle->set).error());
  return std::unique_ptr<HttpClient>(new HttpClient(std::move(handle)));
}

HttpClient::HttpClient(std::unique_ptr<Handle> handle) : handle_(std::move(handle)) {}

HttpClient::~HttpClient() = default;

Result<HttpReply> HttpClient::Get(const std::string& url, uint64_t offset, const Sink& sink) {
  Transfer transfer{&sink, {}, {}};
  const std::string range = std::to_string(offset) + "-";
  handle_->Set(CURLOPT_URL, url.c_str());
  handle_->Set(CURLOPT_RANGE, offset > 0 ? range.c_str() : nullptr);
  handle_->Set(CURLOPT_HEADERDATA, &transfer);
  handle_->Set(CURLOPT_WRITEDATA, &transfer);
  if (!handle_->set) return tl::unexpected(handle_->set.error());
  handle_->message[0] = '\0';
  const CURLcode code = handle_->library->easy_perform(handle_->curl);
  if (!transfer.taken) return tl::unexpected(std::move(transfer.taken).error());
  if (code != CURLE_OK) {
    const char* message = handle_->message.data();
    transfer.reply.failure = *message != '\0' ? message : handle_->library->strerror(code);
    transfer.reply.is_final = WouldComeAgain(code);
  }
  return std::move(transfer.reply);
}

}  // namespace kvasir::hub
