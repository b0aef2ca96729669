// Reads the text of an about.json. What it says must be written and read again as the same.
#include <cmath>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "fuzz_target.h"
#include "tier/store_about.h"

KV_FUZZ_TARGET(tier_about)(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const kvasir::StoreAbout about = kvasir::ParseAbout(text);
  KV_CHECK(std::isfinite(about.load_bytes_per_s) && about.load_bytes_per_s >= 0);
  const kvasir::StoreAbout again = kvasir::ParseAbout(kvasir::AboutText(about));
  KV_CHECK(again.model == about.model && again.kv_format == about.kv_format);
  KV_CHECK(again.hits == about.hits && again.last_hour == about.last_hour);
  KV_CHECK(again.written_day == about.written_day && again.written_bytes == about.written_bytes);
  KV_CHECK(again.load_bytes_per_s == about.load_bytes_per_s);
  return 0;
}
