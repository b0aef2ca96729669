// Model images: repacked weights kept in files, so that the next start maps them instead of packing
// them again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/gmac.h"
#include "base/mapped_file.h"
#include "base/thread_pool.h"
#include "kvasir/status.h"

namespace kvasir {

// What an image holds, for people. Not authenticated before the image is opened.
struct ImageTitle {
  std::string model;    // its name
  std::string weights;  // "bf16", "q4_k", "i8"
};

struct ImageListing {
  std::filesystem::path path;
  uint64_t file_bytes = 0;
  int64_t used_ns = 0;  // when it was last opened or written, since 1970
  ImageTitle title;     // empty when the header cannot be read
};

// An image's payload, verified.
struct OpenedImage {
  std::shared_ptr<const MappedFile> file;
  std::span<const std::byte> payload;
};

// The images of a folder. Each is named by its key, a digest of everything that decides its
// payload, and authenticated by tags under a key derived from the server secret: others who can
// write to the folder cannot change a model. The tags are computed over the mapped bytes that are
// used afterwards. Images are replaced by renaming and removed by unlinking, never in place, so a
// process that has one mapped can go on. FileWatch notices when somebody else changes one in place.
// Thread-compatible; processes may share a folder.
class ModelImages {
 public:
  // cap_bytes: of all images in the folder together.
  ModelImages(std::filesystem::path folder, uint64_t cap_bytes, const Secret& secret);

  // Absent when there is no such image. kCorruption when it is damaged, cut short, of another
  // version or made with another secret; Open then removes it if it can. Other errors as
  // MappedFile::Open. Removes the least recently used images until all fit the cap, this one last:
  // it stays mapped. O(payload), on the pool's threads.
  Result<std::optional<OpenedImage>> Open(const Digest& key, uint64_t payload_bytes,
                                          ThreadPool& pool) const;

  // Writes an image as an AtomicFile, without a sync, which took a minute for 2.5 GB on a slow
  // disk. If a power cut tears the file, its tags show it and the image is made again. Before and
  // after, removes the least recently used images until all fit the cap, drafts of others included.
  // kExhausted when the image does not fit alone, when others cannot be removed, or when the disk
  // is full; other errors as CodeOfErrno. An error leaves no draft and does not change an older
  // image of the same key. O(payload).
  Status Write(const Digest& key, const ImageTitle& title, std::span<const std::byte> payload,
               ThreadPool& pool) const;

  // Lists images, the most recently used first. Nothing is verified. Empty where there is no
  // folder.
  static std::vector<ImageListing> List(const std::filesystem::path& folder);

 private:
  std::filesystem::path PathOf(const Digest& key) const;
  Status MakeRoom(uint64_t bytes, const std::filesystem::path& except) const;
  void KeepCap(const std::filesystem::path& path, uint64_t bytes) const;  // of the image in use
  // Removes the least recently used images, except one, until they and the drafts have at most
  // `limit` bytes. Returns the bytes that remain.
  uint64_t RemoveOthers(uint64_t limit, const std::filesystem::path& except) const;

  std::filesystem::path folder_;
  uint64_t cap_bytes_;
  Secret secret_;
};

}  // namespace kvasir
