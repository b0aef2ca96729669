// RequestLog: one log line for a request: the client, what it asked, and how it ended.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "api/answer.h"
#include "http/errors.h"

namespace kvasir {

// Lives from a request's headers to its end. Holds no text of a prompt or an answer. One thread.
class RequestLog {
 public:
  RequestLog(std::string_view method, std::string_view target);
  void set_status(int status) { status_ = status; }
  void set_id(const std::string& id) { id_ = " id=" + id; }
  void Refused(const Refusal& refusal);
  void Told(const Answer& answer);  // adds the tokens of a finished generation

  // `127.0.0.1 POST /v1/completions 200 prompt 40 cached 29 generated 9 ttft 0.5 ms, 1.2 ms`, or
  // `127.0.0.1 POST /v1/completions 400 code=invalid_argument field=n 0.1 ms id=a1`; "" for what
  // probes ask for all day, where the log leaves out kDebug. `remark` comes last.
  std::string Line(std::string_view peer, std::string_view remark) const;

 private:
  std::string what_;  // method and path
  bool probe_;
  uint64_t start_ns_;
  int status_ = 0;  // 0: no answer
  std::string id_, refusal_;
  std::string tokens_;
};

}  // namespace kvasir
