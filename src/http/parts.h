// Parts: a long text that is generated piece by piece, so that only one piece is in memory.
#pragma once

#include <coroutine>
#include <cstddef>
#include <exception>
#include <string>
#include <utility>

namespace kvasir {

// A piece ends when it has this many bytes; it may be a few times as long.
inline constexpr size_t kPartBytes = 8 << 10;

// The text of a coroutine that `co_yield`s a string at the end of each piece, and finds the string
// empty afterwards. Objects that the coroutine refers to must outlive this. An exception of the
// coroutine ends the text: Next throws it. Thread-compatible.
class Parts {
 public:
  struct promise_type {
    Parts get_return_object() { return Parts(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    std::suspend_always yield_value(std::string& text) noexcept {
      piece = &text;
      return {};
    }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { thrown = std::current_exception(); }

    std::string* piece = nullptr;
    std::exception_ptr thrown;
  };

  Parts() = default;
  Parts(Parts&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Parts& operator=(Parts&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Parts() {
    if (handle_) handle_.destroy();
  }

  // Whether there is a text; it may already be at its end.
  explicit operator bool() const { return static_cast<bool>(handle_); }

  // The next piece; "" at the end. Throws what the coroutine threw; then the text has ended.
  std::string Next() {
    std::string piece;
    while (piece.empty() && handle_ && !handle_.done()) {
      handle_.resume();
      if (std::exception_ptr thrown = std::exchange(handle_.promise().thrown, {})) {
        std::rethrow_exception(std::move(thrown));
      }
      if (!handle_.done()) piece = std::exchange(*handle_.promise().piece, {});
    }
    return piece;
  }

 private:
  using Handle = std::coroutine_handle<promise_type>;
  explicit Parts(Handle handle) : handle_(handle) {}

  Handle handle_;
};

}  // namespace kvasir
