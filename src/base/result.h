// Short forms for Result: Fail() makes an error, FailField() an error about a field, FailCause()
// one with a Cause, KV_TRY returns an error to the caller.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "kvasir/status.h"

namespace kvasir {

template <typename... Args>
tl::unexpected<Error> Fail(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

// Makes an error about `field` (Error::field); the message must not repeat its name.
template <typename... Args>
tl::unexpected<Error> FailField(Code code, std::string field, fmt::format_string<Args...> format,
                                Args&&... args) {
  auto failed = Fail(code, format, std::forward<Args>(args)...);
  failed.value().field = std::move(field);
  return failed;
}

// Makes an error with a Cause, which callers distinguish; the message says all of it.
template <typename... Args>
tl::unexpected<Error> FailCause(Code code, Cause cause, fmt::format_string<Args...> format,
                                Args&&... args) {
  auto failed = Fail(code, format, std::forward<Args>(args)...);
  failed.value().cause = cause;
  return failed;
}

#define KV_CONCAT_INNER(a, b) a##b
#define KV_CONCAT(a, b) KV_CONCAT_INNER(a, b)

// Returns the error of a Status expression from the enclosing function.
#define KV_TRY(expr)                                                     \
  do {                                                                   \
    auto kv_status = (expr);                                             \
    if (!kv_status) return tl::unexpected(std::move(kv_status).error()); \
  } while (false)

// KV_ASSIGN(auto x, F()): x is F()'s value, or F()'s error is returned.
#define KV_ASSIGN(lhs, expr) KV_ASSIGN_IMPL(KV_CONCAT(kv_result_, __LINE__), lhs, expr)
#define KV_ASSIGN_IMPL(tmp, lhs, expr)                     \
  auto tmp = (expr);                                       \
  if (!tmp) return tl::unexpected(std::move(tmp).error()); \
  lhs = std::move(*tmp)

}  // namespace kvasir
