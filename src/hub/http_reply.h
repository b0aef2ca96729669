// HttpReply: what a GET ended with, and how header lines become one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvasir::hub {

// The last response, after redirects, except for `etag`.
struct HttpReply {
  int status = 0;  // 0: no response came
  // The hub's own name of the file's content: X-Linked-Etag of any response, else ETag of the first
  // one. Without quotes and W/. "": none came.
  std::string etag;
  std::string error_code;                 // X-Error-Code: "GatedRepo", "RepoNotFound", ...
  std::optional<uint64_t> range_begin;    // the first byte that Content-Range names
  std::optional<uint32_t> retry_after_s;  // Retry-After, where it is a number
  bool was_redirected = false;
  std::string failure;    // why no whole response came; "": it came
  bool is_final = false;  // the failure would come again: a certificate, a redirect
};

// Takes one line of the headers, with or without its line break. A status line begins the next
// response.
void TakeHeaderLine(std::string_view line, HttpReply& reply);

}  // namespace kvasir::hub
