// A request as it was read, and the answer to it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/parts.h"

namespace kvasir {

struct HttpRequest {
  std::string method;               // HEAD arrives as GET
  std::string target;               // path and query, as sent
  std::optional<std::string> host;  // from an absolute target or the header; absent: HTTP/1.0
  std::string authorization, api_key, requested_headers, content_type;
  std::string traceparent;    // several headers are joined, which makes it invalid
  std::string id;             // x-request-id, if it can be used, or a made one
  std::string timeout_ms;     // x-request-timeout-ms, as sent
  bool accepts_html = false;  // a browser that shows a page
  std::string origin;         // several headers are joined, which makes the origin invalid
  std::string body;
};

// The log's part about a refused request; never text that the client sent.
struct Refusal {
  std::string code;  // as `error.code` of the answer has it
  std::optional<std::string> field;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  Parts rest;               // the rest of the body, where it may be long
  uint64_t rest_bytes = 0;  // memory that `rest` holds until its end
  std::optional<Refusal> refusal = {};
  bool is_metrics = false;  // may take the memory that is kept for metrics
};

}  // namespace kvasir
