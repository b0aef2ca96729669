// Parts: a long text that is generated piece by piece, so that only one piece is in memory.
#pragma once

#include <coroutine>
#include <cstddef>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

namespace kvasir {

// A piece ends when it has this many bytes; it may be a few times as long.
inline constexpr size_t kPartBytes = 8 << 10;

// The text of a coroutine that `co_yield`s what comes next: a text, or other Parts, whose whole
// text comes at that place. A std::string with a name is empty afterwards. Objects that the
// coroutine refers to must outlive this. An exception of the coroutine ends the text: Next throws
// it. Thread-compatible.
class Parts {
 public:
  struct promise_type;

  Parts() = default;
  Parts(Parts&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Parts& operator=(Parts&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Parts() {
    if (handle_) handle_.destroy();
  }

  // Tells whether there is a text; it may already be at its end.
  explicit operator bool() const { return static_cast<bool>(handle_); }

  // Returns the next piece; "" at the end. Throws what the coroutine threw; then the text has
  // ended.
  std::string Next();

  // Returns everything that is left, in one text.
  std::string Rest() {
    std::string rest;
    for (std::string piece = Next(); !piece.empty(); piece = Next()) rest += piece;
    return rest;
  }

 private:
  using Handle = std::coroutine_handle<promise_type>;
  explicit Parts(Handle handle) : handle_(handle) {}

  Handle handle_;
};

struct Parts::promise_type {
  // Suspends until the piece was taken, if it is long enough.
  struct Piece {
    bool is_full;
    bool await_ready() const noexcept { return !is_full; }
    void await_suspend(std::coroutine_handle<>) const noexcept {}
    void await_resume() const noexcept {}
  };
  // Runs `inner` to its end before the coroutine goes on.
  struct Nested {
    Parts inner;
    bool await_ready() const noexcept { return !inner; }
    std::coroutine_handle<> await_suspend(Handle outer) noexcept {
      promise_type& begun = inner.handle_.promise();
      begun.outer = outer;
      begun.root = outer.promise().root;
      begun.root->running = inner.handle_;
      return inner.handle_;
    }
    void await_resume() const {
      if (inner) inner.handle_.promise().Rethrow();
    }
  };
  // Goes on with the outer coroutine, if there is one.
  struct Final {
    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(Handle ended) const noexcept {
      promise_type& promise = ended.promise();
      if (!promise.outer) return std::noop_coroutine();
      promise.root->running = promise.outer;
      return promise.outer;
    }
    void await_resume() const noexcept {}
  };

  Parts get_return_object() { return Parts(Handle::from_promise(*this)); }
  std::suspend_always initial_suspend() noexcept {
    running = Handle::from_promise(*this);
    return {};
  }
  Final final_suspend() noexcept { return {}; }
  Piece yield_value(std::string_view text) {
    root->piece += text;
    return {root->piece.size() >= kPartBytes};
  }
  Piece yield_value(std::string& text) {
    if (root->piece.empty()) {
      root->piece.swap(text);
    } else {
      root->piece += text;
      text.clear();
    }
    return {root->piece.size() >= kPartBytes};
  }
  Nested yield_value(Parts inner) { return {std::move(inner)}; }
  void return_void() noexcept {}
  void unhandled_exception() noexcept { thrown = std::current_exception(); }
  void Rethrow() {
    if (std::exception_ptr of = std::exchange(thrown, {})) std::rethrow_exception(std::move(of));
  }

  promise_type* root = this;  // of the outermost coroutine
  Handle outer;               // the coroutine that waits for the end of this one
  std::exception_ptr thrown;
  std::string piece;  // the root's: what Next returns
  Handle running;     // the root's: the innermost coroutine
};

inline std::string Parts::Next() {
  if (!handle_) return "";
  promise_type& promise = handle_.promise();
  if (!handle_.done()) promise.running.resume();
  if (promise.thrown) promise.piece.clear();
  promise.Rethrow();
  return std::exchange(promise.piece, {});
}

}  // namespace kvasir
