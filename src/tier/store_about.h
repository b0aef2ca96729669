// StoreAbout: what a store's about.json says: for people and for estimates, never trusted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvasir {

struct StoreAbout {
  std::string model, kv_format;
  uint64_t hits = 0;
  double load_bytes_per_s = 0;
  uint64_t written_day = 0, written_bytes = 0;  // days since 1970
  uint64_t last_hour = 0;
};
inline constexpr std::string_view kAboutFileName = "about.json";
inline constexpr uint64_t kMaxAboutBytes = 64 * 1024;
std::string AboutText(const StoreAbout& about);
StoreAbout ParseAbout(const std::string& text);  // what cannot be read keeps its default

}  // namespace kvasir
