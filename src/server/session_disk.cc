#include "server/session_disk.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "base/log.h"
#include "kvasir/session_file.h"

namespace kvasir {
namespace {

// Logs how many sessions of the file the secret does not unseal.
void TellUnreadable(SessionFile& file, const std::string& folder) {
  const auto rows = file.List();
  const auto count =
      rows ? std::ranges::count_if(*rows, [](const auto& row) { return !row.is_readable(); }) : 0;
  if (count == 0) return;
  Log(LogLevel::kWarning,
      "sessions that the secret of this state folder does not unseal stay as they are; the secret "
      "that made them unseals them, and 'kvasir sessions rm --unreadable' removes them",
      LogField("sessions", count), LogField("folder", folder));
}

// Says to callers why the file is not open, without the place of the disk. kUnavailable: the
// sessions there may come back.
Error WhyNoFile(const Error& error) {
  switch (error.code) {
    case Code::kUnavailable:
      return {Code::kUnavailable,
              "another server has the file of the kept sessions; this one takes it over when that "
              "one ends"};
    case Code::kExhausted:
      return {Code::kUnavailable,
              "the disk is full, so that kept sessions cannot be opened; try again later"};
    case Code::kIoError:
      return {Code::kUnavailable, "the disk that keeps sessions fails; try again later"};
    default:
      return {error.code, "the file of the kept sessions cannot be used (the log says why)"};
  }
}

}  // namespace

SessionDisk::SessionDisk(Engine& engine, SessionStore& sessions)
    : engine_(engine), sessions_(sessions) {}

void SessionDisk::Open() {
  const std::optional<TierStats> disk = engine_.DiskStats();
  const SessionLimits& limits = sessions_.limits();
  if (!disk || (limits.max_sessions == 0 && limits.max_responses == 0)) return;
  auto opened = SessionFile::Open(SessionFileOptionsOf(engine_));
  Status used;
  if (opened) {
    const std::shared_ptr<SessionFile> file = std::move(*opened);
    used = sessions_.UseFile(file);
    if (used) TellUnreadable(*file, disk->folder);
  } else {
    used = tl::unexpected(opened.error());
  }
  const std::string why = used ? "" : used.error().message;
  if (why != why_not_) {
    if (used) {
      Log(LogLevel::kInfo, "sessions are kept on the disk", LogField("folder", disk->folder));
    } else {
      Log(LogLevel::kWarning, "sessions end with this process, because their file cannot be used",
          LogField("why", why));
    }
  }
  why_not_ = why;
  waits_.store(!used && used.error().code == Code::kUnavailable, std::memory_order_relaxed);
  if (!used) sessions_.set_no_file(WhyNoFile(used.error()));
}

void SessionDisk::Sweep() {
  const std::shared_ptr<SessionFile> file = sessions_.file();
  if (!file || !file->IsThere()) Open();
  const Status swept = sessions_.SweepFile();
  if (!swept) {
    Log(LogLevel::kWarning, "old sessions cannot be removed from the disk",
        LogField("why", swept.error().message));
  }
}

}  // namespace kvasir
