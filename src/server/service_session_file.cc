// Where sessions outlive the process: sessions.db in the folder of the disk tier.
#include <algorithm>

#include "base/log.h"
#include "kvasir/session_file.h"
#include "server/service_routes.h"

namespace kvasir {
namespace {

void TellUnreadable(SessionFile& file, const std::string& folder) {
  const auto rows = file.List();
  const auto count =
      rows ? std::ranges::count_if(*rows, [](const auto& row) { return !row.is_readable(); }) : 0;
  if (count == 0) return;
  Log(LogLevel::kWarning,
      "sessions that the secret of this state folder does not open stay as they are; the secret "
      "that made them opens them, and 'kvasir sessions rm --unreadable' removes them",
      LogField("sessions", count), LogField("folder", folder));
}

// For callers: without the place of the disk. kUnavailable: the sessions there may come back.
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

void Service::OpenSessionFile() {
  const std::optional<TierStats> disk = engine_.DiskStats();
  if (!disk || options_.max_sessions == 0) return;
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
  if (why != no_session_file_) {
    if (used)
      Log(LogLevel::kInfo, "sessions are kept on the disk", LogField("folder", disk->folder));
    if (!used) {
      Log(LogLevel::kWarning, "sessions end with this process, because their file cannot be used",
          LogField("why", why));
    }
  }
  no_session_file_ = why;
  waits_for_session_file_.store(!used && used.error().code == Code::kUnavailable,
                                std::memory_order_relaxed);
  if (!used) sessions_.set_no_file(WhyNoFile(used.error()));
}

bool Service::WaitsForDisk(const HttpRequest& request) const {
  const Route* route = routes_.Find(request);
  if (route == nullptr || route->files == Route::kNoFiles) return false;
  if (route->files == Route::kSessionFile) return sessions_.file() != nullptr;
  return engine_.DiskStats().has_value();
}

void Service::SweepSessions() {
  const std::shared_ptr<SessionFile> file = sessions_.file();
  if (!file || !file->IsThere()) OpenSessionFile();
  const Status swept = sessions_.SweepFile();
  if (!swept) {
    Log(LogLevel::kWarning, "old sessions cannot be removed from the disk",
        LogField("why", swept.error().message));
  }
}

}  // namespace kvasir
