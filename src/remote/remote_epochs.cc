#include "remote/remote_epochs.h"

#include <sys/stat.h>

#include <charconv>
#include <filesystem>
#include <fstream>

#include "base/atomic_file.h"
#include "base/log.h"

namespace kvasir {

std::string RemoteEpochs::PathOf(std::string_view name) const {
  return folder_ + "/" + std::string(name.substr(name.rfind('/') + 1));
}

Result<uint64_t> RemoteEpochs::Read(std::string_view name) const {
  if (folder_.empty()) return 0;
  std::ifstream file(PathOf(name));
  if (!file) return 0;
  char text[32];
  file.read(text, sizeof text);
  const char* const end = text + file.gcount();
  uint64_t epoch = 0;
  const auto [line, wrong] = std::from_chars(text, end, epoch);
  if (wrong == std::errc() && end - line == 1 && *line == '\n') return epoch;
  const auto refused = Fail(Code::kCorruption, "{} is not a number and a line's end", PathOf(name));
  if (!has_refused_.exchange(true, std::memory_order_relaxed)) {
    Log(LogLevel::kWarning,
        "remote tier: the noted epoch of an owner is damaged: its blocks in the store are not used "
        "until it erases its cache, or you remove the file; without it all that this machine "
        "keeps of the owner is erased where another machine has ever erased it",
        LogField("why", refused.value().message));
  }
  return refused;
}

void RemoteEpochs::Write(std::string_view name, uint64_t epoch) {
  if (folder_.empty()) return;
  MutexLock lock(mutex_);
  if (const auto kept = Read(name); kept && *kept >= epoch) return;
  std::error_code error;
  if (std::filesystem::create_directories(folder_, error)) chmod(folder_.c_str(), 0700);
  const auto written = WriteAtomicFile(PathOf(name), std::to_string(epoch) + "\n", {});
  if (written) return;
  Log(LogLevel::kWarning, "remote tier: the epoch of an owner cannot be kept",
      LogField("why", written.error().message));
}

}  // namespace kvasir
