// JsonPoster: POSTs of JSON to one address, each within a time limit.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "kvasir/status.h"
#include "observe/trace_pair.h"

namespace kvasir {

// Each POST has a new connection. One thread calls Post; any thread may call Stop.
class JsonPoster {
 public:
  // Resolves the name; kNotFound: there is no such host. `headers` go with each POST.
  static Result<std::unique_ptr<JsonPoster>> Make(const std::string& host, const std::string& port,
                                                  const std::string& path,
                                                  const std::vector<TracePair>& headers = {});
  ~JsonPoster();
  JsonPoster(const JsonPoster&) = delete;
  JsonPoster& operator=(const JsonPoster&) = delete;

  // Posts a body. Success: the status of the answer is 2xx. kDeadlineExceeded, or kIoError; the
  // message has the address and the reason.
  Status Post(const std::string& body, std::chrono::milliseconds timeout);
  // Ends the current POST, and all later ones at once.
  void Stop();

 private:
  struct Parts;
  explicit JsonPoster(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace kvasir
