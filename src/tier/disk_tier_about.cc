// DiskTier: what it keeps beside records: about.json and the hours of last use.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json_object.h"
#include "tier/disk_tier.h"

namespace kvasir {
namespace {

const std::string kAboutName(kAboutFileName);

uint64_t NumberOf(const nlohmann::json& about, const char* key) {
  const auto found = about.find(key);
  return found != about.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}
std::string NameOf(const nlohmann::json& about, const char* key) {
  const auto found = about.find(key);
  return found != about.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

std::string AboutText(const StoreAbout& about) {
  const nlohmann::json json = {{"model", about.model},
                               {"kv_format", about.kv_format},
                               {"hits", about.hits},
                               {"load_bytes_s", about.load_bytes_per_s},
                               {"written_day", about.written_day},
                               {"written_bytes", about.written_bytes},
                               {"last_hour", about.last_hour}};
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

StoreAbout ParseAbout(const std::string& text) {
  StoreAbout about;
  const auto json = ParseJsonObject(text, kAboutName);
  if (!json) return about;
  about.model = NameOf(*json, "model");
  about.kv_format = NameOf(*json, "kv_format");
  about.hits = NumberOf(*json, "hits");
  about.written_day = NumberOf(*json, "written_day");
  about.written_bytes = NumberOf(*json, "written_bytes");
  about.last_hour = std::min<uint64_t>(NumberOf(*json, "last_hour"), INT32_MAX);
  const auto speed = json->find("load_bytes_s");
  if (speed != json->end() && speed->is_number() && speed->get<double>() > 0) {
    about.load_bytes_per_s = speed->get<double>();
  }
  return about;
}

StoreAbout DiskTier::AboutNow() {
  return {.model = store_.options.model,
          .kv_format = store_.options.kv_format,
          .hits = store_.figures.hits,
          .load_bytes_per_s = store_.figures.load_bytes_per_s(),
          .written_day = store_.figures.written_day,
          .written_bytes = store_.figures.stats.written_today_bytes,
          .last_hour = store_.clock.latest_hour()};
}

void DiskTier::WriteAbout() {
  StoreAbout about;
  {
    MutexLock lock(store_.mutex);
    about = AboutNow();
  }
  const bool is_new =
      about.written_bytes != about_written_.written_bytes ||
      about.written_day != about_written_.written_day || about.hits != about_written_.hits ||
      about.last_hour != about_written_.last_hour || about.model != about_written_.model;
  if (!is_new) return;
  const IoStatus written = PublishFile(store_.storage, store_.writing_files->folder.id(),
                                       kAboutName, AboutText(about), FileSync::kUnsynced);
  if (written) about_written_ = about;
}

// The hours of last use, of segments whose records were used. Not synced: they only order eviction.
void DiskTier::WriteHours() {
  uint32_t num_segments;
  {
    MutexLock lock(store_.mutex);
    num_segments = store_.segments.max_segments();
  }
  const std::span<std::byte> scratch = store_.buffers.ScratchOf(0);
  for (uint32_t index = 0; index < num_segments; ++index) {
    SegmentShape shape;
    uint32_t number;
    {
      MutexLock lock(store_.mutex);
      SegmentTable::Segment& segment = store_.segments.at(index);
      // Of what cannot be read the hours are not known, and stay.
      const bool is_written = !segment.is_abandoned && segment.num_unread == 0;
      if (!segment.is_open || !segment.has_new_hours || !is_written) continue;
      segment.has_new_hours = false;
      shape = segment.shape;
      number = segment.number;
    }
    const IoResult<OpenedFile> file =
        Own(store_.storage, store_.storage.OpenFile(store_.writing_files->folder.id(),
                                                    SegmentFileName(number), OpenMode::kWrite));
    if (!file) return store_.CountError(&TierStats::fault_write, file.error());
    const auto per_write = static_cast<uint32_t>(scratch.size() / 4);
    for (uint32_t first = 0; first < shape.slots; first += per_write) {
      const uint32_t count = std::min(per_write, shape.slots - first);
      {
        MutexLock lock(store_.mutex);
        for (uint32_t i = 0; i < count; ++i) {
          const std::optional<EntryId> entry = store_.segments.entry({index, first + i});
          const auto hour =
              static_cast<uint32_t>(entry ? store_.records.at(*entry).order >> 32 : 0);
          std::memcpy(scratch.data() + uint64_t{4} * i, &hour, sizeof(hour));
        }
      }
      const IoStatus written = WriteAll(store_.storage, file->id(),
                                        scratch.first(uint64_t{4} * count), shape.hour_at(first));
      if (!written) return store_.CountError(&TierStats::fault_write, written.error());
    }
  }
}

}  // namespace kvasir
