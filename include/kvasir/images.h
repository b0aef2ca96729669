// Model images: what an engine keeps of a model in the cache folder, so that the next start is
// fast.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvasir {

// Of EngineOptions::image_cap_bytes.
inline constexpr uint64_t kDefaultImageCapBytes = uint64_t{16} << 30;

// The folder of a cache folder (EngineOptions::cache_dir) that has the images, and what else is
// kept of models. Absent: there is no home. It may not be there yet.
std::optional<std::string> ImageFolderOf(const std::optional<std::string>& cache_dir);

struct ImageEntry {
  std::string path;
  std::string model, weights;  // as the file says; "" where its header cannot be read
  uint64_t file_bytes = 0;
  int64_t used_s = 0;  // when it was last used, since 1970
};

// The images of a cache folder (EngineOptions::cache_dir), last used first. Only an engine verifies
// them, when it opens one.
std::vector<ImageEntry> ListImages(const std::optional<std::string>& cache_dir);

}  // namespace kvasir
