#include "policy/eviction_choice.h"

#include "policy/lru.h"
#include "policy/s3_fifo.h"

namespace kvasir {
namespace {

template <typename Policy>
constexpr EvictionChoice ChoiceOf(const char* name, const char* evicts_first) {
  return {.name = name,
          .evicts_first = evicts_first,
          .bytes_for = Policy::BytesFor,
          .make = [](const EvictionLimits& limits) -> std::unique_ptr<EvictionPolicy> {
            return std::make_unique<Policy>(limits);
          }};
}

constexpr EvictionChoice kChoices[] = {ChoiceOf<Lru>("lru", "used longest ago"),
                                       ChoiceOf<S3Fifo>("s3fifo", "used once")};

}  // namespace

std::span<const EvictionChoice> EvictionChoices() { return kChoices; }

const EvictionChoice& DefaultEvictionChoice() { return kChoices[0]; }

const EvictionChoice* FindEvictionChoice(std::string_view name) {
  for (const EvictionChoice& choice : kChoices) {
    if (choice.name == name) return &choice;
  }
  return nullptr;
}

std::string EvictionNames() {
  std::string names;
  for (const EvictionChoice& choice : kChoices) {
    names += (names.empty() ? "" : ", ") + std::string(choice.name);
  }
  return names;
}

}  // namespace kvasir
