// PrefixForgetter: takes what a user forgets out of the index.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "block/kv_layout.h"
#include "cache/block_owners.h"
#include "cache/cursor_store.h"
#include "cache/kept_prompts.h"
#include "cache/namespaces.h"
#include "cache/residency.h"
#include "index/prefix_index.h"

namespace kvasir {

// What a call to forget a part of a prompt found.
struct ForgottenText {
  uint64_t erased_blocks = 0, erased_tokens = 0;  // they left the index
  uint64_t kept_shared = 0;                       // blocks that are wholly in a kept prompt
  uint64_t point = 0;                             // for BlockOwners::IsZeroed
};

// The half of KvCache that forgets; KvCache says what each call does. One thread at a time.
class PrefixForgetter {
 public:
  // What it changes; all must outlive it.
  struct Parts {
    const KvLayout& layout;
    PrefixIndex& index;
    CursorStore& cursors;
    Namespaces& namespaces;
    Residency& residency;
    BlockOwners& owners;
  };
  explicit PrefixForgetter(const Parts& parts) : parts_(parts) {}

  uint64_t Forget(NamespaceId ns);  // returns a point for BlockOwners::IsZeroed
  ForgottenText Forget(NamespaceId ns, std::span<const TokenId> ids, uint32_t first, uint32_t last,
                       const KeptPrompts& kept);

 private:
  struct Path;
  struct Found {
    NodeId node;
    bool is_kept;  // wholly in a kept prompt
  };
  std::vector<Found> NodesAfter(const Path& path, const KeptPrompts& kept) const;
  void ForgetAfter(const Path& path, const KeptPrompts& kept, ForgottenText* forgotten);
  void ForgetBack(const Path& path, const KeptPrompts& kept, ForgottenText* forgotten);
  uint64_t BlocksOf(NodeId node) const;

  const Parts parts_;
};

}  // namespace kvasir
