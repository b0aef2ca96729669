// Metadata: the typed reading of a GGUF file's keys.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "import/gguf.h"
#include "kvasir/types.h"

namespace kvasir {

// Returns a number of any integer type that is not negative.
std::optional<uint64_t> WholeNumber(const GgufValue& value);

// Reads typed metadata and keeps the first error, which names file and key. Keys are given without
// the prefix. After an error the results are placeholders.
class Metadata {
 public:
  // `fix`: the end of each message.
  Metadata(const GgufFile& gguf, std::string_view prefix, const std::string& file,
           Code code = Code::kInvalidArgument, std::string_view fix = "")
      : gguf_(gguf), prefix_(prefix), file_(file), code_(code), fix_(fix) {}

  const Status& status() const { return status_; }
  const GgufValue* Find(const std::string& key) const;  // nullptr: the key is missing
  bool Has(const std::string& key) const { return Find(key) != nullptr; }
  // Absent, or nullptr: the key is missing.
  std::optional<uint64_t> Whole(const std::string& key) const;  // also where it is of another type
  std::optional<bool> Flag(const std::string& key);
  std::optional<std::string> Text(const std::string& key);
  const GgufArray* List(const std::string& key);
  // Refuses a list longer than max_count before any of it is copied.
  std::optional<std::vector<std::string>> Texts(const std::string& key, size_t max_count);
  std::optional<std::vector<double>> Numbers(const std::string& key, size_t count);
  // Returns an id. Also absent: -1 and ids from num_tokens on. Some files name a padding token that
  // they do not have.
  std::optional<TokenId> Id(const std::string& key, size_t num_tokens);
  // Reads a whole number in [1, max], of any integer type. Without a fallback it must be there.
  // Here and in Number a list with the same entry for each layer is that entry.
  uint32_t Count(const std::string& key, uint32_t max, std::optional<uint32_t> fallback = {});
  double Number(const std::string& key, std::optional<double> fallback = {});
  // Appends the Id, where there is one.
  void AddId(const std::string& key, size_t num_tokens, std::vector<TokenId>& ids);

  // Returns the value, or what all entries of a list with one for each layer are. Absent: the key
  // is missing, or the list is wrong.
  std::optional<GgufValue> OfAllLayers(const std::string& key);

  // Keeps an error: "{file}: metadata '{prefix}{key}' {what}{fix}".
  void Wrong(const std::string& key, std::string_view what);

 private:
  template <typename T>
  const T* Typed(const std::string& key, const char* type) {
    const GgufValue* value = Find(key);
    if (value == nullptr) return nullptr;
    if (const T* typed = std::get_if<T>(value)) return typed;
    Wrong(key, type);
    return nullptr;
  }

  const GgufFile& gguf_;
  const std::string prefix_;
  const std::string& file_;
  const Code code_;
  const std::string fix_;
  Status status_;
};

}  // namespace kvasir
