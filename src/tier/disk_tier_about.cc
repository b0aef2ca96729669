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
  StoreAbout about{.model = options_.model,
                   .kv_format = options_.kv_format,
                   .hits = hits_,
                   .load_bytes_per_s = kept_bytes_per_s_,
                   .written_day = written_day_,
                   .written_bytes = stats_.written_today_bytes,
                   .last_hour = latest_hour_};
  if (read_bytes_per_s_ > 0 && open_bytes_per_s_ > 0) {
    about.load_bytes_per_s = 1 / (1 / read_bytes_per_s_ + 1 / open_bytes_per_s_);
  }
  return about;
}

void DiskTier::WriteAbout() {
  StoreAbout about;
  {
    MutexLock lock(mutex_);
    about = AboutNow();
  }
  const bool is_new =
      about.written_bytes != about_written_.written_bytes ||
      about.written_day != about_written_.written_day || about.hits != about_written_.hits ||
      about.last_hour != about_written_.last_hour || about.model != about_written_.model;
  if (!is_new) return;
  const IoStatus written = PublishFile(storage_, writing_files_->folder.id(), kAboutName,
                                       AboutText(about), FileSync::kUnsynced);
  if (written) about_written_ = about;
}

// The hours of last use, of segments whose records were used. Not synced: they only order eviction.
void DiskTier::WriteHours() {
  uint32_t num_segments;
  {
    MutexLock lock(mutex_);
    num_segments = memory_.segments.max_segments();
  }
  const std::span<std::byte> scratch = ScratchOf(0);
  for (uint32_t index = 0; index < num_segments; ++index) {
    SegmentShape shape;
    uint32_t number;
    {
      MutexLock lock(mutex_);
      SegmentTable::Segment& segment = memory_.segments.at(index);
      // Of what cannot be read the hours are not known, and stay.
      const bool is_written = !segment.is_abandoned && segment.num_unread == 0;
      if (!segment.is_open || !segment.has_new_hours || !is_written) continue;
      segment.has_new_hours = false;
      shape = segment.shape;
      number = segment.number;
    }
    const IoResult<OpenedFile> file = Own(
        storage_,
        storage_.OpenFile(writing_files_->folder.id(), SegmentFileName(number), OpenMode::kWrite));
    if (!file) return CountError(&TierStats::fault_write, file.error());
    const auto per_write = static_cast<uint32_t>(scratch.size() / 4);
    for (uint32_t first = 0; first < shape.slots; first += per_write) {
      const uint32_t count = std::min(per_write, shape.slots - first);
      {
        MutexLock lock(mutex_);
        for (uint32_t i = 0; i < count; ++i) {
          const std::optional<EntryId> entry = memory_.segments.entry({index, first + i});
          const auto hour =
              static_cast<uint32_t>(entry ? memory_.records.at(*entry).order >> 32 : 0);
          std::memcpy(scratch.data() + uint64_t{4} * i, &hour, sizeof(hour));
        }
      }
      const IoStatus written =
          WriteAll(storage_, file->id(), scratch.first(uint64_t{4} * count), shape.hour_at(first));
      if (!written) return CountError(&TierStats::fault_write, written.error());
    }
  }
}

}  // namespace kvasir
