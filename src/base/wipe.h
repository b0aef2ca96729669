// Wipe: overwrites what must not be found in memory later. The compiler cannot leave it out.
#pragma once

#include <openssl/crypto.h>

#include <string>
#include <type_traits>
#include <vector>

namespace kvasir {

// Zeroes all bytes that the text or the list has allocated, and empties it.
inline void Wipe(std::string* text) {
  text->resize(text->capacity());
  OPENSSL_cleanse(text->data(), text->size());
  text->clear();
}

template <typename T>
void Wipe(std::vector<T>* list) {
  static_assert(std::is_trivially_copyable_v<T>);
  OPENSSL_cleanse(list->data(), list->size() * sizeof(T));
  list->clear();
}

}  // namespace kvasir
