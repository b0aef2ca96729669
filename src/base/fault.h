// Faults that `kvasir selftest --inject` turns on to show that its checks can fail. Off unless
// selftest or a test sets one. Each is checked on a cold path (once per block, chunk or batch).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvasir {

enum class Fault {
  kNone,
  kStaleBlock,        // a block is published with another block's bytes
  kWrongPosition,     // tokens after a hit are computed one position off
  kSkippedCompare,    // the index trusts any child instead of comparing tokens
  kChunkEdge,         // the first token of a later chunk does not see itself
  kForeignNamespace,  // all namespaces share one root
  kLaneOrder,         // reductions of single-row batches add lanes in another order
  kStaleResume,       // a request that goes on after a preemption computes one position off
  kSkippedTag,        // the disk tier serves a payload with a wrong tag
  kStaleSlot,         // the disk tier takes a record of another slot
  kKeptKey,           // an erase leaves the key file of the disk tier
  kLazyForget,        // a forget leaves the blocks in the index
  kEraseByFirst,      // a forget takes all that begins with the text's first token
  kEraseOwnOnly,      // a forget leaves what others computed after the text
  kForeignAdapter,    // prompts share KV whatever adapters computed it
  kMatesAdapter,      // a row is computed with the adapters of the first one of its step
  kForeignSource,     // sources that differ in their last token alone share their KV
  kAcceptedWrong,     // a drafted token is taken though another one was drawn
  kKeptDraft,         // the KV of a drafted token that was not drawn stays in its place
  kUnshiftedSinks,    // after a hit the first tokens are asked from the row's position
  kLateDrop,          // the rows of a step drop tokens when its first row does
  kLooseSpan,         // a span from the cache is asked as if it had been computed in its place
  kDraftedScore,      // the weights of drafted rows that were rejected count for what is dropped
  kForeignResume,     // a prompt takes exact KV of what it would compute inexactly
  kDeafBreaker,       // what a fleet's store does wrong does not turn it off
  kKeptEpoch,         // an erase leaves the owner's epoch in a fleet's store as it is
  // The disk tier's, for its tests alone: no name selects them.
  kStoredBeforeSync,     // a record is called stored when it is written, not when it is synced
  kBelievedSync,         // a failed sync counts as done
  kUnsyncedKeyFolder,    // a key file's name is not synced
  kUncheckedGeneration,  // a record of another segment of the same name is taken
  kErasedBeforeSync,     // an erase is answered before anything of it is durable
  kForgottenBeforeSync,  // the same for a forget
  kKeptCopies,           // a forget leaves what is in free slots
  kCapAfterGrowth,       // the cap is looked at after a segment is made
  kChildWithoutParent,   // a record is written although the one before it is not stored
  // The remote tier's, for its tests alone.
  kUnkeyedName,      // names in a fleet's store do not depend on the owner's epoch
  kSkippedInnerTag,  // the payload's tag in a value is not compared
  // The KV events', for their tests alone.
  kLateRemoval,  // a removed block is reported after the next event, which may be of its place
  // The protocols', for their tests alone.
  kSystemHoisted,      // a late system message moves to the head
  kMarkInPrompt,       // templates see the marks of messages
  kMarkNeverExpires,   // a mark's time has no end
  kHeadsOfAllTenants,  // a chat is compared with those of all tenants
};

std::optional<Fault> ParseFault(std::string_view name);
std::string FaultNames();  // "stale-block, ...", for messages
void InjectFault(Fault fault);
bool FaultActive(Fault fault);

}  // namespace kvasir
