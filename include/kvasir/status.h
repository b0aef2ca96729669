// Errors as values. No exception leaves a function of this project.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tl/expected.hpp>

namespace kvasir {

// What the caller does next. Never renumber.
enum class Code {
  kInvalidArgument = 1,  // the request is wrong: fix it (HTTP 400, exit 2)
  kNotFound = 2,         // no such model, tensor, file (404, exit 2)
  kExhausted = 3,        // a budget is full: wait or ask for less (429)
  kCorruption = 4,       // bytes do not say what they must: do not use them
  kIoError = 5,          // the world failed
  kDeadlineExceeded = 6,
  kUnavailable = 7,  // shutting down or loading (503)
  kUnsupported = 8,  // known, and not there (400, exit 2)
  kCancelled = 9,
  kPermissionDenied = 10,
  kModelChanged = 11,  // the model's files were changed while in use: restart (503)
};

struct Error {
  Code code;
  std::string message;  // what, on what, with which numbers; and the fix where one is known
  // The field of the options or of the request that is wrong, as a user gives it: in the singular,
  // without its unit ("kv_memory", "api_key"). Absent: the error is about no field.
  std::optional<std::string> field = {};
  std::optional<uint64_t> index = {};  // which of the field's values

  // What a person reads: "prompt[3]: token 9 is ...".
  std::string text() const {
    if (!field) return message;
    return *field + (index ? "[" + std::to_string(*index) + "]" : "") + ": " + message;
  }
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

}  // namespace kvasir
