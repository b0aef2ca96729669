#include "cache/identity.h"

namespace kvasir {
namespace {

void Add(Sha256& sha, std::string_view part) { sha.UpdateU64(part.size()).Update(part); }
void Add(Sha256& sha, const Digest& part) {
  sha.UpdateU64(part.size()).Update(std::as_bytes(std::span(part)));
}

}  // namespace

Identity IdentityOf(const IdentityParts& parts) {
  Sha256 sha;
  Add(sha, parts.weights);
  Add(sha, parts.config);
  Add(sha, parts.adapter);
  Add(sha, parts.tokenizer);
  Add(sha, parts.kv_format);
  Add(sha, parts.layout);
  Add(sha, parts.numerics);
  return sha.Finish();
}

}  // namespace kvasir
