#include "tier/store_about.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_object.h"

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

}  // namespace kvasir
