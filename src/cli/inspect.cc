// kvasir inspect: lists the content of the cache folder.
#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "base/result.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/state_flags.h"
#include "eval/kept_quality.h"
#include "kvasir/disk.h"
#include "kvasir/images.h"
#include "kvasir/session_file.h"

namespace kvasir::cli {
namespace {

// Formats a time as ISO 8601, in UTC.
std::string TimeText(int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

nlohmann::ordered_json JsonOf(const std::vector<ImageEntry>& images) {
  uint64_t total_bytes = 0;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ImageEntry& image : images) {
    total_bytes += image.file_bytes;
    list.push_back({{"path", image.path},
                    {"model", image.model.value_or("")},
                    {"weights", image.weights.value_or("")},
                    {"file_bytes", image.file_bytes},
                    {"used", TimeText(image.used_s)}});
  }
  return {{"images", std::move(list)}, {"image_bytes", total_bytes}};
}

void PrintTable(const std::vector<ImageEntry>& images) {
  if (images.empty()) {
    fmt::print("no model images\n");
    return;
  }
  for (const ImageEntry& image : images) {
    const std::string name =
        image.model ? *image.model + " (" + *image.weights + ")" : "(unreadable)";
    fmt::print("{:<32} {:>12}  last used {}  {}\n", name, FormatBytes(image.file_bytes),
               TimeText(image.used_s), image.path);
  }
}

nlohmann::ordered_json JsonOf(const std::vector<StoreListing>& stores) {
  auto list = nlohmann::ordered_json::array();
  for (const StoreListing& store : stores) {
    list.push_back({{"store", store.store},
                    {"model", store.model},
                    {"kv_format", store.kv_format},
                    {"segments", store.segments},
                    {"blocks", store.blocks},
                    {"bytes", store.bytes},
                    {"hits", store.hits},
                    {"last_use", store.last_use_unix_s == 0
                                     ? nlohmann::ordered_json()
                                     : nlohmann::ordered_json(TimeText(store.last_use_unix_s))}});
  }
  return list;
}

void PrintTable(const std::vector<StoreListing>& stores) {
  for (const StoreListing& store : stores) {
    fmt::print("{:<32} {:>12}  last used {}  disk store {}: {}, {}\n",
               store.model + " (" + store.kv_format + ")", FormatBytes(store.bytes),
               TimeText(store.last_use_unix_s), store.store, CountText(store.blocks, "block"),
               CountText(store.hits, "hit"));
  }
}

nlohmann::ordered_json JsonOf(const std::optional<SessionFileListing>& listing) {
  using nlohmann::ordered_json;
  if (!listing) return nullptr;
  auto readable = ordered_json::array();
  for (const SessionFileListing::Session& one : listing->readable) {
    readable.push_back({{"id", one.id},
                        {"messages", one.messages},
                        {"tokens", one.tokens ? ordered_json(*one.tokens) : ordered_json()},
                        {"bytes", one.bytes},
                        {"used", TimeText(one.used_s)}});
  }
  return {{"sessions", listing->sessions},
          {"bytes", listing->bytes},
          {"readable", std::move(readable)},
          {"skipped", listing->skipped ? ordered_json(*listing->skipped) : ordered_json()}};
}

void PrintTable(const SessionFileListing& listing) {
  if (listing.skipped) return fmt::print("sessions.db: skipped: {}\n", *listing.skipped);
  const uint64_t unreadable = listing.sessions - listing.readable.size();
  fmt::print("{:<32} {:>12}  {}{}\n", "sessions.db", FormatBytes(listing.bytes),
             CountText(listing.sessions, "session"),
             unreadable == 0 ? "" : fmt::format(", {} not readable with this secret", unreadable));
  for (const SessionFileListing::Session& one : listing.readable) {
    fmt::print("  {} {:>7}  last used {}  {}{}\n", one.id, FormatBytes(one.bytes),
               TimeText(one.used_s), CountText(one.messages, "message"),
               one.tokens ? ", " + CountText(*one.tokens, "token") : "");
  }
}

Result<int> RunInspect(const Args& args) {
  KV_ASSIGN(const std::optional<std::string> disk, ReadDiskFolder(args));
  const std::vector<ImageEntry> images = ListImages(CacheDirOf(args));
  const auto folder = ImageFolderOf(CacheDirOf(args));
  const auto qualities = folder ? eval::ListQualities(*folder) : std::vector<eval::KeptQuality>{};
  std::vector<StoreListing> stores;
  std::optional<SessionFileListing> sessions;
  if (disk) {
    sessions = ListSessionFile({.folder = *disk});
    Result<std::vector<StoreListing>> listed = ListDiskStores(*disk);
    if (listed) stores = std::move(*listed);
    // The default folder need not be there.
    if (!listed && args.Has("disk")) return tl::unexpected(listed.error());
  }
  if (args.Has("json")) {
    nlohmann::ordered_json json = JsonOf(images);
    json["stores"] = JsonOf(stores);
    json["sessions"] = JsonOf(sessions);
    json["quality"] = nlohmann::ordered_json::array();
    for (const eval::KeptQuality& quality : qualities) json["quality"].push_back(JsonOf(quality));
    // A name may have bytes that are not UTF-8.
    fmt::print("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    PrintTable(images);
    PrintTable(stores);
    if (sessions) PrintTable(*sessions);
    for (const eval::KeptQuality& quality : qualities) {
      fmt::print("{} ({})  {}\n", quality.model, quality.weights, eval::QualityText(quality));
    }
  }
  return kExitDone;
}

}  // namespace

Command InspectCommand() {
  return {
      "inspect",
      "lists what the next start finds: model images, stores and sessions of the disk tier, and "
      "what eval measured",
      "inspect",
      Join({{{"disk", "DIR", "folder of the disk tier (default: kv in the cache folder)"},
             {"json", "", "one object with every image, store, session and measurement",
              FlagKind::kSwitch}},
            CacheDirFlags()}),
      RunInspect};
}

}  // namespace kvasir::cli
