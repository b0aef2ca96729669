// Unseals bytes as a value and as an owner's object: what was not sealed by the keys is not
// unsealed.
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "fuzz_target.h"
#include "remote/fleet_keys.h"
#include "remote/remote_value.h"

namespace kvasir {
namespace {

void OpenRemote(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const FleetKeys keys(Secret{1, 2, 3});
  KV_CHECK(!keys.UnsealOwner("kvasir/1/a/b", bytes));
  // A value of any length: the shape that would have it, where there is one.
  constexpr uint32_t kTokens = 4;
  const RecordShape least{.block_tokens = kTokens, .payload_bytes = 0};
  const uint64_t beside = RawValueBytes(least);
  const RecordShape shape{.block_tokens = kTokens,
                          .payload_bytes = size > beside ? size - beside : 16};
  const std::vector<TokenId> tokens(kTokens, 7);
  const AesKey random{9};
  const Digest identity{};
  RecordFacts facts;
  facts.tokens = tokens;
  std::vector<std::byte> payload(shape.payload_bytes);
  KV_CHECK(!UnsealValue({.shape = shape, .identity = identity, .random = random, .name = "n"},
                        facts, bytes, payload, nullptr));
}

}  // namespace
}  // namespace kvasir

KV_FUZZ_TARGET(remote_value)(const uint8_t* data, size_t size) {
  kvasir::OpenRemote(data, size);
  return 0;
}
