// Model images: packed weights that an engine keeps in the cache folder, so that the next start is
// fast.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvasir {

// Default of EngineOptions::image_cap_bytes.
inline constexpr uint64_t kDefaultImageCapBytes = uint64_t{16} << 30;

// Returns the folder inside a cache folder (EngineOptions::cache_dir) that holds the images and
// other files kept for models. It may not exist yet. Absent when there is no home folder.
std::optional<std::string> ImageFolderOf(const std::optional<std::string>& cache_dir);

struct ImageEntry {
  std::string path;
  // From the file's header: the model's name and the format of its weights ("bf16", "q4_k").
  // Absent where the header cannot be read.
  std::optional<std::string> model, weights;
  uint64_t file_bytes = 0;
  int64_t used_s = 0;  // when it was last used, since 1970
};

// Returns the images of a cache folder (EngineOptions::cache_dir), most recently used first. They
// are not verified here: an engine verifies an image when it opens it.
std::vector<ImageEntry> ListImages(const std::optional<std::string>& cache_dir);

}  // namespace kvasir
