#include "server/session_disk.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "base/log.h"
#include "base/result.h"
#include "kvasir/session_file.h"

namespace kvasir {
namespace {

// Logs how much of the file the secret does not unseal.
void TellUnreadable(SessionFile& file, const std::string& folder) {
  const auto rows = file.List();
  if (!rows) return;
  const auto count = [&](SessionKind kind) {
    return std::ranges::count_if(
        *rows, [&](const auto& row) { return !row.is_readable() && KindOfId(row.id) == kind; });
  };
  const auto sessions = count(SessionKind::kSession), responses = count(SessionKind::kResponse);
  if (sessions + responses == 0) return;
  Log(LogLevel::kWarning,
      "sessions that the secret of this state folder does not unseal stay as they are; the secret "
      "that made them unseals them, and 'kvasir sessions rm --unreadable' removes them",
      LogField("sessions", sessions), LogField("stored_responses", responses),
      LogField("folder", folder));
}

// Says to callers why the file is not open, without the place of the disk. kUnavailable: the
// sessions there may come back.
Error WhyNoFile(const Error& error) {
  switch (error.code) {
    case Code::kUnavailable:
      return {Code::kUnavailable,
              "another server uses the folder of the kept sessions; this one takes them over when "
              "that one ends"};
    case Code::kExhausted:
      return {Code::kUnavailable,
              "the disk is full, so that kept sessions cannot be opened; try again later"};
    case Code::kIoError:
      return {Code::kUnavailable, "the disk that keeps sessions fails; try again later"};
    default:
      return {error.code, "the file of the kept sessions cannot be used (the log says why)"};
  }
}

// Tells whether another process has the blocks of the folder. It gets the sessions next, so that no
// two servers of a model have one each.
bool WaitsForBlocks(const TierStats& disk) { return disk.state == TierStats::State::kWaiting; }

// Opens the file of the sessions. kUnavailable: another process has it, or the blocks.
Result<std::shared_ptr<SessionFile>> OpenFile(Engine& engine, const TierStats& disk) {
  if (WaitsForBlocks(disk)) {
    return Fail(Code::kUnavailable, "the blocks in {} are open in another process", disk.folder);
  }
  return SessionFile::Open(SessionFileOptionsOf(engine));
}

// Logs where sessions are kept from now on.
void Tell(const Status& used, const std::string& folder) {
  if (used) {
    return Log(LogLevel::kInfo, "sessions are kept on the disk", LogField("folder", folder));
  }
  const bool waits = used.error().code == Code::kUnavailable;
  Log(LogLevel::kWarning,
      waits ? "the kept sessions are taken over when the process that has them ends; until then "
              "new ones are in memory alone"
            : "sessions end with this process, because their file cannot be used",
      LogField("why", used.error().message));
}

}  // namespace

SessionDisk::SessionDisk(Engine& engine, SessionStore& sessions)
    : engine_(engine), sessions_(sessions) {}

void SessionDisk::Open() {
  const std::optional<TierStats> disk = engine_.DiskStats();
  const SessionLimits& limits = sessions_.limits();
  if (!disk || (limits.max_sessions == 0 && limits.max_responses == 0)) return;
  const auto opened = OpenFile(engine_, *disk);
  const Status used = opened ? sessions_.UseFile(*opened) : tl::unexpected(opened.error());
  if (used) TellUnreadable(**opened, disk->folder);
  const std::string why = used ? "" : used.error().message;
  if (why != why_not_) Tell(used, disk->folder);
  why_not_ = why;
  waits_.store(!used && used.error().code == Code::kUnavailable, std::memory_order_relaxed);
  if (!used) sessions_.set_no_file(WhyNoFile(used.error()));
}

void SessionDisk::Sweep() {
  const std::optional<TierStats> disk = engine_.DiskStats();
  // A tier that has failed leaves its blocks for a minute, in which another process may take them.
  if (sessions_.file() && disk && WaitsForBlocks(*disk)) {
    sessions_.LeaveFile(WhyNoFile({Code::kUnavailable, ""}));
  }
  const std::shared_ptr<SessionFile> file = sessions_.file();
  if (!file || !file->IsThere()) Open();
  const Status swept = sessions_.SweepFile();
  if (!swept) {
    Log(LogLevel::kWarning, "old sessions cannot be removed from the disk",
        LogField("why", swept.error().message));
  }
}

}  // namespace kvasir
