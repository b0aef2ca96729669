#include "tier/store_notes.h"

#include <algorithm>
#include <cstring>

namespace kvasir {

void StoreNotes::ReadAbout() {
  const IoResult<std::string> text =
      ReadSmallFile(store_.storage, store_.writing_files->folder.id(), std::string(kAboutFileName),
                    kMaxAboutBytes);
  written_ = text ? ParseAbout(*text) : StoreAbout{};
  const StoreAbout& about = written_;
  MutexLock lock(store_.mutex);
  StoreFigures& figures = store_.figures;
  store_.clock.NotBefore(static_cast<uint32_t>(about.last_hour));
  (void)store_.clock.NowHour();
  // The higher one of two figures of one day is right: this one may be from before a crash. One of
  // a later day is a lie, or of a clock that was wrong.
  const bool is_lie = about.written_day > static_cast<uint64_t>(store_.storage.UnixS() / 86400);
  if (!is_lie && about.written_day > figures.written_day) figures.stats.written_today_bytes = 0;
  if (!is_lie && about.written_day >= figures.written_day) {
    figures.written_day = about.written_day;
    figures.stats.written_today_bytes =
        std::max(figures.stats.written_today_bytes, about.written_bytes);
  }
  figures.hits = std::max(figures.hits, about.hits);
  figures.kept_bytes_per_s = about.load_bytes_per_s;
}

StoreAbout StoreNotes::AboutNow() const {
  return {.model = store_.options.model,
          .kv_format = store_.options.kv_format,
          .hits = store_.figures.hits,
          .load_bytes_per_s = store_.figures.load_bytes_per_s(),
          .written_day = store_.figures.written_day,
          .written_bytes = store_.figures.stats.written_today_bytes,
          .last_hour = store_.clock.latest_hour()};
}

void StoreNotes::WriteAbout() {
  StoreAbout about;
  {
    MutexLock lock(store_.mutex);
    about = AboutNow();
  }
  const bool is_new = about.written_bytes != written_.written_bytes ||
                      about.written_day != written_.written_day || about.hits != written_.hits ||
                      about.last_hour != written_.last_hour || about.model != written_.model;
  if (!is_new) return;
  const IoStatus written =
      PublishFile(store_.storage, store_.writing_files->folder.id(), std::string(kAboutFileName),
                  AboutText(about), FileSync::kUnsynced);
  if (written) written_ = about;
}

void StoreNotes::WriteHours() {
  uint32_t num_segments;
  {
    MutexLock lock(store_.mutex);
    num_segments = store_.segments.max_segments();
  }
  for (uint32_t index = 0; index < num_segments; ++index) {
    SegmentShape shape;
    uint32_t number;
    {
      MutexLock lock(store_.mutex);
      SegmentTable::Segment& segment = store_.segments.at(index);
      // The hours of records that cannot be read are not known, and stay.
      const bool is_written = !segment.is_abandoned && segment.num_unread == 0;
      if (!segment.is_open || !segment.has_new_hours || !is_written) continue;
      segment.has_new_hours = false;
      shape = segment.shape;
      number = segment.number;
    }
    const IoStatus written = WriteHoursOf(index, number, shape);
    if (!written) return store_.CountError(&TierStats::fault_write, written.error());
  }
}

IoStatus StoreNotes::WriteHoursOf(uint32_t segment, uint32_t number, const SegmentShape& shape) {
  const IoResult<OpenedFile> file =
      Own(store_.storage, store_.storage.OpenFile(store_.writing_files->folder.id(),
                                                  SegmentFileName(number), OpenMode::kWrite));
  if (!file) return IoFailed(file.error());
  const std::span<std::byte> scratch = store_.buffers.ScratchOf(0);
  const auto per_write = static_cast<uint32_t>(scratch.size() / 4);
  for (uint32_t first = 0; first < shape.slots; first += per_write) {
    const uint32_t count = std::min(per_write, shape.slots - first);
    {
      MutexLock lock(store_.mutex);
      for (uint32_t i = 0; i < count; ++i) {
        const std::optional<EntryId> entry = store_.segments.entry({segment, first + i});
        const auto hour = static_cast<uint32_t>(entry ? store_.records.at(*entry).order >> 32 : 0);
        std::memcpy(scratch.data() + uint64_t{4} * i, &hour, sizeof(hour));
      }
    }
    const IoStatus written = WriteAll(store_.storage, file->id(),
                                      scratch.first(uint64_t{4} * count), shape.hour_at(first));
    if (!written) return written;
  }
  return {};
}

}  // namespace kvasir
