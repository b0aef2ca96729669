// HttpClient: GET over libcurl, which only http_client.cc knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "hub/http_reply.h"
#include "hub/hub_settings.h"
#include "kvasir/status.h"

namespace kvasir::hub {

// Follows at most ten redirects, from https only to https, and sends the token only to the host,
// scheme and port of the first address. Uses the proxies that libcurl's environment variables name,
// except with a token over plain http, and keeps connections open. A connection that cannot be made
// within 20 s, or that brings less than a byte a second for 30 s, fails. One thread.
class HttpClient {
 public:
  // Takes bytes of a response whose status is 200 or 206. An error ends the transfer.
  using Sink = std::function<Status(const HttpReply& reply, std::span<const std::byte> bytes)>;

  // kIoError: libcurl is not installed, older than 7.85, cannot be initialised, or refuses an
  // option (the certificates, say).
  static Result<std::unique_ptr<HttpClient>> Create(const HubSettings& settings);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Gets `url` from byte `offset` on. The reply says what the network and the server did; errors
  // are those of `sink`, and kIoError: libcurl cannot take the address.
  Result<HttpReply> Get(const std::string& url, uint64_t offset, const Sink& sink);

 private:
  struct Handle;
  explicit HttpClient(std::unique_ptr<Handle> handle);

  std::unique_ptr<Handle> handle_;
};

}  // namespace kvasir::hub
