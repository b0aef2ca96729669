// RunLoad: sends a workload to a server and times its answers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvasir/status.h"
#include "load/sample.h"
#include "load/workload.h"

namespace kvasir::load {

struct Target {
  std::string host = "127.0.0.1", port = "8080";
  std::vector<std::string> api_keys;  // tenant i has key i modulo their number
  std::string model;                  // "": not sent
  double temperature = 0;
  bool chat = false;   // /v1/chat/completions, with a word for each token
  bool whole = false;  // not streamed: an answer costs the generator next to nothing
};

// Parses "http://HOST[:PORT][/]", without TLS. kInvalidArgument otherwise.
Result<Target> ParseUrl(const std::string& url);

struct RunOptions {
  Target target;
  uint32_t concurrency = 0;  // clients at once; 0: each request goes out when it is due
  double seconds = 0;        // no request goes out later; 0: all go out
  double wait_s = 120;       // for the answers after that; then they are given up
};

struct LoadResult {
  std::vector<Sample> samples;  // by request, of those that went out, or should have
  double seconds = 0;           // from the start to the last answer
};

// Sends each request over a separate connection, in the calling thread. kUnavailable when the
// server cannot be reached at all.
Result<LoadResult> RunLoad(const std::vector<LoadRequest>& requests, const RunOptions& options);

// Returns the JSON body of a request.
std::string BodyOf(const LoadRequest& request, const Target& target);

}  // namespace kvasir::load
