// TemporaryFolder: a folder that goes with its object.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "base/result.h"

namespace kvasir::cli {

// In $TMPDIR, else /tmp.
class TemporaryFolder {
 public:
  static Result<TemporaryFolder> Make() {
    const char* tmp = std::getenv("TMPDIR");
    std::string path =
        std::string(tmp != nullptr && *tmp != '\0' ? tmp : "/tmp") + "/kvasir.XXXXXX";
    if (mkdtemp(path.data()) == nullptr) {
      return Fail(Code::kIoError, "cannot make a folder like {}", path);
    }
    TemporaryFolder folder;
    folder.path_ = path;
    return folder;
  }
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::move(other.path_)) {
    other.path_.clear();
  }
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder() {
    std::error_code error;
    if (!path_.empty()) std::filesystem::remove_all(path_, error);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  TemporaryFolder() = default;
  std::filesystem::path path_;
};

}  // namespace kvasir::cli
