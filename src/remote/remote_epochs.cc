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

uint64_t RemoteEpochs::Read(std::string_view name) const {
  if (folder_.empty()) return 0;
  std::ifstream file(PathOf(name));
  uint64_t epoch = 0;
  return file >> epoch ? epoch : 0;
}

void RemoteEpochs::Write(std::string_view name, uint64_t epoch) {
  if (folder_.empty()) return;
  MutexLock lock(mutex_);
  if (Read(name) >= epoch) return;
  std::error_code error;
  if (std::filesystem::create_directories(folder_, error)) chmod(folder_.c_str(), 0700);
  const auto written = WriteAtomicFile(PathOf(name), std::to_string(epoch) + "\n", {});
  if (written) return;
  Log(LogLevel::kWarning, "remote tier: the epoch of an owner cannot be kept",
      LogField("why", written.error().message));
}

}  // namespace kvasir
