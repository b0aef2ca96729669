#include "remote/removal_notes.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/atomic_file.h"
#include "base/hex.h"
#include "base/log.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEnding = ".removal";

}  // namespace

std::string RemovalNotes::PathOf(std::string_view name) const {
  return fmt::format("{}/{}{}", folder_, name.substr(name.rfind('/') + 1), kEnding);
}

std::vector<Digest> RemovalNotes::All() const {
  std::vector<Digest> owners;
  std::error_code error;
  if (!is_kept()) return owners;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    if (entry.path().extension() != kEnding) continue;
    std::ifstream file(entry.path());
    std::string digits;
    std::getline(file, digits);
    const auto owner = FromHex<sizeof(Digest)>(digits, HexCase::kLower);
    if (owner) {
      owners.push_back(*owner);
      continue;
    }
    Log(LogLevel::kWarning,
        "remote tier: the note of a removal is damaged: remove the file, and erase the cache of "
        "who deleted something while the store was away",
        LogField("file", entry.path().string()));
  }
  return owners;
}

void RemovalNotes::Add(std::string_view name, const Digest& owner) const {
  if (!is_kept()) return;
  std::error_code error;
  if (fs::create_directories(folder_, error)) chmod(folder_.c_str(), 0700);
  const auto written = WriteAtomicFile(PathOf(name), ToHex(owner) + "\n", {});
  if (written) return;
  Log(LogLevel::kWarning, "remote tier: a removal that waits cannot be kept over a restart",
      LogField("why", written.error().message));
}

void RemovalNotes::Remove(std::string_view name) const {
  std::error_code error;
  if (is_kept()) fs::remove(PathOf(name), error);
}

}  // namespace kvasir
