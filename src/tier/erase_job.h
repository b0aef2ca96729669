// EraseJob: an erase of an owner, or a forget, from when it is asked for until it is answered.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tier/store.h"

namespace kvasir {

struct EraseJob {
  EraseJob() = default;
  EraseJob(const EraseJob&) = delete;
  ~EraseJob();  // wipes the tokens

  Digest owner{};
  std::optional<ForgetFacts> path = {};  // a forget; absent: all of the owner
  std::string folder, key_file_name;
  // The owner in the store that is open; absent: it has none there.
  std::optional<OwnerId> id;
  TierErased erased;
  std::function<void(Result<TierErased>)> done;  // empty: it was called
  uint64_t due_ns = 0;                           // when it is tried again; 0: it is new
  std::optional<int> error = {};                 // of the last try
  bool is_done = false;                          // and not told yet
  bool has_intent = false;                       // durable: the next start goes on with it
  // What it did not reach, where something of it may lie: links, and segments of another version or
  // shape.
  std::vector<std::string> not_reached;
};

// Lists the links that `job` does not follow: those of the folder, or, for a forget, of this store.
IoStatus NoteLinks(Store& store, FileId root, EraseJob* job);
// Answers the job, if it was not answered yet. False: the callback threw; it is called again.
bool AnswerErase(EraseJob& job);

}  // namespace kvasir
