// ValueSwap: a value in the place of another one, for tests that must not open it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/random.h"
#include "remote/remote_value.h"

namespace kvasir {

// A part of its place in which a value differs: its name below the owner's, the random bytes that
// only the fleet's machines know, the model's identity, the owner.
enum class ValueSwap : uint8_t { kName, kFleet, kModel, kOwner };
inline constexpr uint64_t kNumValueSwaps = 4;

// Returns what UnsealValue says to a value in a place that differs from `place` and `facts` by a
// bit of one part.
inline bool OpensSwapped(ValueSwap part, Random& random, const ValuePlace& place, RecordFacts facts,
                         std::span<const std::byte> value, std::span<std::byte> payload,
                         PlaneCodecs* codecs) {
  std::string name(place.name);
  AesKey key = place.random;
  Digest identity = place.identity;
  const auto flip = [&](auto& bytes) {
    bytes[random.Below(bytes.size())] ^= static_cast<uint8_t>(1u << random.Below(8));
  };
  switch (part) {
    case ValueSwap::kName: {
      const size_t digits = name.rfind('/') + 1;
      char& digit = name[digits + random.Below(name.size() - digits)];
      digit = static_cast<char>(digit ^ 1 << random.Below(7));
      break;
    }
    case ValueSwap::kFleet:
      flip(key);
      break;
    case ValueSwap::kModel:
      flip(identity);
      break;
    case ValueSwap::kOwner:
      flip(facts.owner);
  }
  return UnsealValue({place.shape, identity, key, name}, facts, value, payload, codecs);
}

}  // namespace kvasir
