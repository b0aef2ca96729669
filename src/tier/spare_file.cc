#include "tier/spare_file.h"

#include <algorithm>
#include <cerrno>
#include <string>

#include "tier/erase_files.h"
#include "tier/store_files.h"

namespace kvasir {

uint64_t SpareOf(Storage& storage, FileId root, std::string_view name) {
  const IoResult<FileFacts> facts = storage.FactsOf(root, std::string(name));
  return facts ? facts->blocks_bytes : 0;
}

void KeepSpare(Storage& storage, FileId root, std::string_view name, uint64_t bytes,
               uint64_t cap_bytes) {
  const uint64_t before = SpareOf(storage, root, name);
  if (before >= bytes) return;
  const auto tree = storage.TreeBytes(root, kSegmentPrefix);
  const uint64_t used = tree ? tree->whole_bytes + tree->other_bytes : cap_bytes;
  if (used + bytes - before + kTierDraftBytes > cap_bytes) return;
  const IoResult<OpenedFile> file =
      Own(storage, storage.OpenFile(root, std::string(name), OpenMode::kWriteOrNew));
  constexpr uint64_t kStep = uint64_t{32} << 10;
  for (uint64_t left = file ? bytes : 0; left > before;) {
    const IoStatus kept = AllocateBytes(storage, file->id(), left);
    if (kept || !IsFull(kept.error())) return;
    left -= std::min(left, kStep);
  }
}

bool GiveSpare(Storage& storage, FileId root, std::string_view name) {
  return storage.Unlink(root, std::string(name)).has_value();
}

bool IsFull(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

}  // namespace kvasir
