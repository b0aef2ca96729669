// Receipt: what the cache did for one request, and why.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvasir/adapters.h"
#include "kvasir/drafts.h"
#include "kvasir/prompt_spans.h"
#include "kvasir/retention.h"

namespace kvasir {

enum class MissReason {
  kCold,
  kDiverged,
  kEvicted,
  kIdentityChanged,
  kDisabled,
  kWindow,
  kRopeChanged,
  kPoolFull,
  kOvertaken,   // it is on the disk, and computing was quicker
  kUnreadable,  // what the disk has of it is damaged, or could not be read
  // kDiverged, where more is known of a chat:
  kTemplateRewrote,  // the template renders a turn differently once it is not the last
  kRetokenized,      // the text is the same as the one that was cached; its ids are others
  kAdapterChanged,   // it was read with other adapters, or without
  kRemoteDown        // the fleet's store has it, and stopped to answer
};
inline constexpr uint32_t kNumMissReasons = 14;

// "cold", "diverged", "evicted", "identity_changed", "disabled", "window", "rope_changed",
// "pool_full", "overtaken", "unreadable", "template_rewrote", "retokenized", "adapter_changed",
// "remote_down".
const char* ToString(MissReason reason);

struct Miss {
  MissReason reason;
  uint32_t at_token = 0;  // index of the first token that was not reused
  std::optional<uint32_t> message_index;
};

// A line of a chat's prompt that an earlier one of the tenant has other or lacks, though the lines
// after it are the same: they were computed again because of it.
struct VolatileLine {
  // The message that it is in, and which line of its text, from 0. Absent: it is in no message, or
  // the template wrote it, or it says of a tool.
  std::optional<uint32_t> message_index, line;
  uint32_t repeated_tokens = 0;  // after it, up to the next line that changed
};

// Lines of system messages that change with each prompt, and were taken out or to its end.
struct CuredLines {
  uint32_t dropped = 0, moved = 0;
};

// Tokens of the prompt by source: computed + all reused_* == prompt_tokens.
struct Receipt {
  uint32_t prompt_tokens = 0;
  uint32_t computed = 0;
  uint32_t reused_pool = 0;     // whole blocks, and a shared tail without changes
  uint32_t reused_partial = 0;  // tokens of a block whose later tokens differ
  uint32_t reused_disk = 0;
  uint32_t reused_remote = 0;
  // For an encoder-decoder model: tokens of the source, and how many of them had their KV in the
  // cache: all or none. They are not in prompt_tokens.
  uint32_t source_tokens = 0, source_reused = 0;
  uint32_t preemptions = 0;      // times that it gave up its blocks while it ran
  uint32_t recomputed = 0;       // tokens of prompt and answers that were computed again after that
  std::optional<Miss> miss;      // absent when all tokens that can be reused were
  CuredLines cured;              // GenerateRequest::cured
  std::optional<uint32_t> kept;  // tokens that GenerateRequest::keeps keeps; absent: it has none
  std::vector<VolatileLine> volatile_lines;  // where that is the miss's cause
  // Request fields that the server does not read, and those that its prompt does not show.
  std::vector<std::string> ignored;
  bool clock_in_prompt = false;  // the chat template wrote the date or the time
  // What it was computed with beside the model, and a digest of that in hex digits; both empty:
  // nothing.
  std::vector<UsedAdapter> adapters;
  std::string adapter_digest;
  double saved_ms = 0;  // time to compute the reused tokens, at this engine's measured speed
  // The parts of ttft_ms: waiting for room; waiting for another request that computed what both
  // begin with; inside the cache; loading from a tier; everything else.
  double queue_ms = 0, shared_ms = 0, cache_ms = 0, load_ms = 0, compute_ms = 0;
  double ttft_ms = 0;                 // from submission to the first token
  std::optional<double> estimate_ms;  // of ttft_ms, when it was submitted; absent: unknown
  double tpot_ms = 0;                 // mean time per later token
  DraftReceipt draft;
  std::optional<RetentionReceipt> retention;  // absent: it kept all
  std::optional<SpansReceipt> spans;          // absent: it had none

  // Joins the receipt of another prompt of the same request: sums of tokens, of preemptions and of
  // saved time, the first miss, and the times of the prompt whose first token came first.
  void Add(const Receipt& other);

  uint32_t cached_tokens() const {
    return reused_pool + reused_partial + reused_disk + reused_remote;
  }
};

}  // namespace kvasir
