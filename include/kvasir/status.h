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
  kNotFound = 2,         // the model, tensor or file does not exist (404, exit 2)
  kExhausted = 3,        // a budget is full: wait or ask for less (429)
  kCorruption = 4,       // the bytes are damaged: do not use them
  kIoError = 5,          // the system failed to read, write or connect
  kDeadlineExceeded = 6,
  kUnavailable = 7,  // shutting down or loading (503)
  kUnsupported = 8,  // known, but not implemented (400, exit 2)
  kCancelled = 9,
  kPermissionDenied = 10,
  kModelChanged = 11,  // the model's files were changed while in use: restart (503)
};

// Kinds of errors that callers tell apart where neither the code nor the field does.
enum class Cause {
  kRate,        // the tenant has used up its requests or tokens of this minute
  kMaxQueued,   // the tenant has as many requests as it may (TenantRules::max_queued)
  kKvMax,       // the cache's owner has as many blocks as it may (TenantRules::kv_max)
  kDeadline,    // the request would not end within its time limit: trying again is in vain
  kKeyRevoked,  // the API key was removed while its request was answered
  kNoTenant,    // the API key has no tenant, and the request needs one
  kNotAdmin,    // the API key is not an admin's, and the request needs one
  kReadOnly,    // what is to be erased is in a store that this process only reads
  kContext,     // the prompt does not fit the context: Error::excess, where its length is known
};

// A prompt that does not fit the context, in tokens.
struct ContextExcess {
  uint64_t prompt_tokens, ctx_size;
  bool is_least = false;  // it has at least prompt_tokens: its text is too long to be counted
};

struct Error {
  Code code;
  std::string message;  // what is wrong, where, with numbers; and the fix where one is known
  // The name of the wrong field of the options or of the request, as a user writes it: singular and
  // without a unit ("kv_memory", "api_key"). Absent when the error is not about a field. The
  // message does not repeat it.
  std::optional<std::string> field = {};
  std::optional<uint64_t> index = {};     // which of the field's values
  std::optional<uint64_t> retry_ms = {};  // when there may be room
  std::optional<Cause> cause = {};
  std::optional<ContextExcess> excess = {};  // with Cause::kContext
  bool field_is_sent = false;  // `field` has a word that the client chose: no log may have it

  // Returns the text for users: "prompt[3]: token 9 is ...".
  std::string text() const {
    if (!field) return message;
    return *field + (index ? "[" + std::to_string(*index) + "]" : "") + ": " + message;
  }
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

}  // namespace kvasir
