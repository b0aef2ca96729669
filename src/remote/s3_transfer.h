// S3Client: what libcurl has of it.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/curl_library.h"
#include "remote/s3_client.h"

namespace kvasir {

constexpr int kLeastPassing = 500;  // the least status by which a store refuses for a while only

struct S3Client::Task {
  enum class Kind : uint8_t { kRequest, kList };
  Kind kind = Kind::kRequest;
  StoreRequest request;
  AwsRequest http;
  bool is_again = false;  // it has failed once
};

// One request and its response, as libcurl's callbacks see them. A response of any length costs no
// more than what is wanted of it: one that is longer ends the transfer.
struct S3Client::Transfer {
  Transfer(const CurlLibrary& curl, Task task);
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Sets the options of its handle. kIoError: libcurl refuses one, or has no memory.
  Status Set(const RemoteAddress& address, const S3Access& access, curl_slist* resolve);
  size_t TakeHeader(std::string_view line);
  size_t TakeBody(std::span<const char> bytes);
  size_t GiveBody(std::span<char> room);
  bool SeekBody(curl_off_t to);

  // Returns whether a response has come, or as much of it as was to be taken.
  bool has_response(CURLcode code) const { return code == CURLE_OK || is_too_long; }
  std::string Words() const;
  StoreReply Reply() const;

  const CurlLibrary& library;
  Task task;
  CURL* easy = nullptr;
  curl_slist* headers = nullptr;
  std::array<char, CURL_ERROR_SIZE> message{};
  int status = 0;
  size_t got = 0;          // bytes of `into`
  size_t sent = 0;         // bytes of `value`
  size_t num_headers = 0;  // bytes of the response's headers
  bool is_too_long = false;
  std::string etag;
  std::string text;  // an error, or a list
};

// A multi handle and the transfers that it has.
struct S3Client::Sockets {
  explicit Sockets(const CurlLibrary& curl) : library(curl), multi(curl.multi_init()) {}
  ~Sockets();
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;

  // Takes a transfer back that has ended, or was not begun.
  std::unique_ptr<Transfer> Take(CURL* easy);

  const CurlLibrary& library;
  CURLM* const multi;
  curl_slist* resolve = nullptr;
  std::deque<Task> waiting;
  std::vector<std::unique_ptr<Transfer>> transfers;  // under way
};

}  // namespace kvasir
