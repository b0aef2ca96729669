#include "tier/store_keeper.h"

#include <chrono>
#include <thread>
#include <utility>

#include "base/hex.h"
#include "base/log.h"
#include "base/result.h"

namespace kvasir {
namespace {

constexpr uint64_t kEachSecondNs = 1'000'000'000, kEachSpaceNs = 10 * kEachSecondNs;
constexpr uint64_t kRetryBrokenNs = 60 * kEachSecondNs, kRetryWaitingNs = kEachSecondNs;

}  // namespace

StoreKeeper::StoreKeeper(Store& store, RecordReader& reader, ProgressCall& progress)
    : store_(store),
      reader_(reader),
      progress_(progress),
      segments_(store),
      room_(store, segments_),
      notes_(store),
      condemned_(store, segments_),
      writer_(store, room_),
      flushes_(store),
      erases_(store, segments_, condemned_, room_, progress),
      scan_(store, segments_, notes_),
      opener_(store, segments_, room_, scan_, erases_) {}

bool StoreKeeper::is_on() const {
  MutexLock lock(store_.mutex);
  return store_.state.now == TierStats::State::kOn;
}

Status StoreKeeper::OpenFirst() {
  Status opened = OpenStore();
  if (opened || !opener_.has_folder()) return opened;
  StayOff(opened.error());
  return {};
}

bool StoreKeeper::Step() {
  {
    MutexLock lock(store_.mutex);
    store_.writer_has_news = false;
    if (store_.is_stopping) return false;
  }
  // While a read has not returned, no other one would be served.
  if (!LeaveIfFailed() && !is_on() && store_.storage.MonotonicNs() >= retry_ns_ &&
      !reader_.is_reading()) {
    const Status opened = OpenStore();
    if (!opened) StayOff(opened.error());
  }
  bool has_worked = erases_.Run([this] { Leave("a forget failed"); });
  if (is_on()) {
    if (writer_.WriteIfDue()) {
      has_worked = true;
      progress_.Call();
    }
    has_worked |= Maintain();
  }
  has_worked |= AnswerFlushes();
  return has_worked;
}

// Opens the store anew. REQUIRES: it is not on.
Status StoreKeeper::OpenStore() {
  retry_ns_ = store_.storage.MonotonicNs() + kRetryWaitingNs;
  Status opened = opener_.Open();
  if (!opened && store_.writing_files != nullptr) Leave(opened.error().message);
  if (!opened || store_.writing_files == nullptr) return opened;
  is_failure_logged_ = false;
  (void)condemned_.ZeroAll(AbandonedSegments::kLeft);
  return {};
}

// Stays off until it tries again, in 60 s.
void StoreKeeper::StayOff(const Error& why) {
  if (!std::exchange(is_failure_logged_, true)) {
    Log(LogLevel::kWarning, "disk tier: off until its folder can be used",
        LogField("reason", why.message));
  }
  retry_ns_ = store_.storage.MonotonicNs() + kRetryBrokenNs;
  MutexLock lock(store_.mutex);
  store_.state.now = TierStats::State::kBroken;
  store_.state.reason = why.message;
}

void StoreKeeper::Leave(std::string reason) {
  {
    MutexLock lock(store_.mutex);
    store_.Leave(std::move(reason));
  }
  erases_.ForgetStore();
  retry_ns_ = store_.storage.MonotonicNs() + kRetryBrokenNs;
  writer_.DropGroup();
  store_.writing_files.reset();
  flushes_.FindAnswers();  // nothing can be stored any more
  progress_.Call();
}

void StoreKeeper::LeaveFailed(std::string reason) {
  Log(LogLevel::kWarning, "disk tier: it is off for 60 s",
      LogField("folder", store_.options.folder), LogField("reason", reason));
  Leave(std::move(reason));
}

// Leaves the store after too many errors. Returns whether it did.
bool StoreKeeper::LeaveIfFailed() {
  std::string reason;
  {
    MutexLock lock(store_.mutex);
    const bool must_leave = std::exchange(store_.state.must_leave, false);
    if (!must_leave || store_.state.now != TierStats::State::kOn) return false;
    reason = "too many errors" + store_.LastErrorText();
  }
  LeaveFailed(std::move(reason));
  return true;
}

// Leaves a store whose folder was removed or moved: no later start finds what lies in it. Returns
// whether it did. REQUIRES: the store is open.
bool StoreKeeper::LeaveIfGone() {
  const std::string path = store_.options.folder + "/" + ToHex(store_.id);
  if (store_.storage.IsAt(store_.writing_files->folder.id(), path)) return false;
  LeaveFailed("the folder was removed or moved");
  return true;
}

// Does what is due by time. Returns whether it left the store. REQUIRES: the store is open.
bool StoreKeeper::Maintain() {
  const uint64_t now_ns = store_.storage.MonotonicNs();
  if (now_ns < second_ns_) return false;
  second_ns_ = now_ns + kEachSecondNs;
  reader_.NoteStalls();
  uint32_t hour;
  {
    MutexLock lock(store_.mutex);
    hour = store_.clock.NowHour();
    const uint64_t day = hour / 24;
    if (day > store_.figures.written_day) {
      store_.figures.written_day = day;
      store_.figures.stats.written_today_bytes = 0;
    }
  }
  room_.FitReserved();
  if (hour != maintained_hour_) {
    maintained_hour_ = hour;
    room_.ExpireOld();
    notes_.WriteHours();
  }
  if (now_ns < space_ns_) return false;
  space_ns_ = now_ns + kEachSpaceNs;
  if (LeaveIfGone()) return true;
  room_.GiveBack();
  room_.NoteRoom();
  room_.KeepRoomToErase(store_.writing_files->root.id());
  segments_.RemoveAbandoned();
  (void)condemned_.ZeroAll(AbandonedSegments::kLeft);
  notes_.WriteAbout();
  return false;
}

// Returns whether it gave an answer.
bool StoreKeeper::AnswerFlushes() {
  // What cannot be found again is not durable.
  if (flushes_.is_waiting() && is_on()) (void)LeaveIfGone();
  flushes_.FindAnswers();
  if (!flushes_.Answer()) return false;
  progress_.Call();
  return true;
}

void StoreKeeper::Close(LastNotes notes) {
  if (store_.writing_files != nullptr && notes == LastNotes::kWritten) {
    notes_.WriteHours();
    notes_.WriteAbout();
  }
  Leave("the tier is closed");
  for (int tries = 0; tries < 100 && flushes_.is_waiting(); ++tries) {
    // A callback had no memory: it gets some more chances.
    if (!AnswerFlushes()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace kvasir
