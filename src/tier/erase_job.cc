#include "tier/erase_job.h"

#include <openssl/crypto.h>

#include <cstring>

#include "base/hex.h"
#include "base/result.h"
#include "tier/set_aside.h"

namespace kvasir {

EraseJob::~EraseJob() {
  if (path) OPENSSL_cleanse(path->tokens.data(), path->tokens.size() * sizeof(TokenId));
}

IoStatus NoteLinks(Store& store, FileId root, EraseJob* job) {
  const auto links = ListLinks(store.storage, root);
  if (!links) return IoFailed(links.error());
  job->not_reached.clear();
  for (const std::string& link : *links) {
    if (!job->path || link.starts_with(ToHex(store.id))) job->not_reached.push_back(link);
  }
  return {};
}

bool AnswerErase(EraseJob& job) {
  if (!job.done) return true;
  try {
    if (job.is_done && !job.not_reached.empty()) {
      const size_t more = job.not_reached.size() - 1;
      job.done(Fail(Code::kUnavailable,
                    "memory is erased, and all that can be reached on the disk, but some of it may "
                    "stay in {}/{}{}: links are not followed, and segments of another version or "
                    "shape are not read; remove what a link leads to, then these names ('kvasir "
                    "fsck --remove-unreadable' removes links and segments of another version), and "
                    "ask again",
                    job.folder, job.not_reached.front(),
                    more > 0 ? fmt::format(" and {} more", more) : ""));
    } else if (job.is_done) {
      job.done(job.erased);
    } else if (job.error) {
      job.done(Fail(Code::kUnavailable,
                    "memory is erased, but blocks stay on the disk: cannot erase in {}: {}{}",
                    job.folder, std::strerror(*job.error),
                    job.has_intent ? "" : "; after a restart it must be asked for again"));
    } else {
      job.done(Fail(Code::kUnavailable, "disk tier: it was closed before the erase"));
    }
    job.done = nullptr;
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace kvasir
