// MoveInto, MovedPointer: moves of classes whose destructor gives something back.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace kvasir {

// Assigns by destroying and making anew, so that a class lists its members once: its destructor
// gives back what it has, and its move constructor leaves nothing in `from` to give back.
template <typename T>
T& MoveInto(T& to, std::type_identity_t<T>&& from) noexcept {
  static_assert(std::is_nothrow_move_constructible_v<T>);
  if (&to != &from) {
    std::destroy_at(&to);
    std::construct_at(&to, std::move(from));
  }
  return to;
}

// A pointer that is nullptr after it was moved from. Owns nothing.
template <typename T>
class MovedPointer {
 public:
  MovedPointer(T* pointer = nullptr) : pointer_(pointer) {}  // NOLINT: stands for the pointer
  MovedPointer(MovedPointer&& other) noexcept : pointer_(std::exchange(other.pointer_, nullptr)) {}
  MovedPointer& operator=(MovedPointer&& other) noexcept {
    pointer_ = std::exchange(other.pointer_, nullptr);
    return *this;
  }
  T* get() const { return pointer_; }
  T* operator->() const { return pointer_; }
  T& operator*() const { return *pointer_; }
  bool operator==(std::nullptr_t) const { return pointer_ == nullptr; }

 private:
  T* pointer_;
};

}  // namespace kvasir
