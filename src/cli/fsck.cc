// kvasir fsck: unseals every record of the disk tier.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "base/sizes.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/state_flags.h"
#include "kvasir/disk.h"
#include "kvasir/disk_check.h"
#include "kvasir/session_file.h"

namespace kvasir::cli {
namespace {

nlohmann::ordered_json JsonOf(const StoreCheck& check) {
  return {{"store", check.store},
          {"model", check.model},
          {"kv_format", check.kv_format},
          {"blocks", check.blocks},
          {"bytes", check.bytes},
          {"damaged", check.damaged},
          {"skipped", check.skipped ? nlohmann::ordered_json(*check.skipped) : nullptr}};
}

void Print(const StoreCheck& check) {
  if (check.skipped) return fmt::print("{}: skipped: {}\n", check.store, *check.skipped);
  fmt::print("{}: {} ({}): {}, {}, {} damaged\n", check.store, check.model, check.kv_format,
             CountText(check.blocks, "block"), FormatBytes(check.bytes), check.damaged.size());
  for (const std::string& what : check.damaged) fmt::print("  damaged: {}\n", what);
}

nlohmann::ordered_json JsonOf(const std::optional<SessionFileCheck>& check) {
  if (!check) return nullptr;
  return {{"sessions", check->sessions},
          {"responses", check->responses},
          {"bytes", check->bytes},
          {"unreadable", check->unreadable},
          {"damaged", check->damaged},
          {"skipped", check->skipped ? nlohmann::ordered_json(*check->skipped) : nullptr}};
}

void Print(const SessionFileCheck& check) {
  if (check.skipped) return fmt::print("sessions.db: skipped: {}\n", *check.skipped);
  fmt::print("sessions.db: {}, {}, {}, {} damaged\n", CountText(check.sessions, "session"),
             CountText(check.responses, "stored response"), FormatBytes(check.bytes),
             check.damaged.size());
  for (const std::string& what : check.damaged) fmt::print("  damaged: {}\n", what);
  if (check.unreadable == 0) return;
  fmt::print("  {} not readable with this secret; 'kvasir sessions rm --unreadable' removes them\n",
             check.unreadable);
}

Result<int> RunFsck(const Args& args) {
  ExitOnInterrupt();
  KV_ASSIGN(const std::optional<std::string> folder, ReadDiskFolder(args));
  if (!folder) return Fail(Code::kNotFound, "there is no cache folder; name one with --disk DIR");
  KV_ASSIGN(const SecretPlace secret, ReadStateFlags(args));
  Progress progress;
  const auto show = [&](const std::string& store, uint64_t done, uint64_t segments) {
    progress.Show(fmt::format("{}: {} of {}", store, done, CountText(segments, "segment")));
  };
  KV_ASSIGN(const std::vector<StoreCheck> checks, CheckDiskStores(*folder, secret, show));
  progress.Clear();
  KV_ASSIGN(const std::optional<SessionFileCheck> sessions,
            CheckSessionFile({.folder = *folder, .secret = secret}));
  const bool removes = args.Has("remove-unreadable");
  KV_ASSIGN(
      const UnreadableNames unreadable,
      UnreadableOnDisk(*folder, secret, removes ? Unreadable::kRemoved : Unreadable::kListed));
  size_t num_damaged = sessions ? sessions->damaged.size() : 0;
  auto list = nlohmann::ordered_json::array();
  for (const StoreCheck& check : checks) {
    num_damaged += check.damaged.size();
    list.push_back(JsonOf(check));
    if (!args.Has("json")) Print(check);
  }
  if (args.Has("json")) {
    const nlohmann::ordered_json json = {{"folder", *folder},
                                         {"stores", std::move(list)},
                                         {"sessions", JsonOf(sessions)},
                                         {"unreadable", unreadable.sealed},
                                         {"set_aside", unreadable.aside},
                                         {"damaged", num_damaged}};
    fmt::print("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else if (checks.empty()) {
    fmt::print("{}: no stores\n", *folder);
  }
  if (args.Has("json")) return num_damaged == 0 ? kExitDone : kExitFailed;
  if (sessions) Print(*sessions);
  for (const std::string& name : unreadable.sealed) {
    fmt::print("{}: not readable with this secret{}\n", name, removes ? ", removed" : "");
  }
  for (const std::string& name : unreadable.aside) {
    fmt::print("{}: set aside earlier{}\n", name,
               removes ? ", removed" : "; 'kvasir fsck --remove-unreadable' removes it");
  }
  return num_damaged == 0 ? kExitDone : kExitFailed;
}

}  // namespace

Command FsckCommand() {
  return {"fsck",
          "checks every block and session of the disk tier and names those that are damaged",
          "fsck",
          Join({{{"disk", "DIR", "the folder (default: kv in the cache folder)"},
                 {"remove-unreadable", "",
                  "removes stores, keys and names that this secret does not unseal, and what was "
                  "set aside "
                  "(sessions: "
                  "'kvasir sessions rm --unreadable')",
                  FlagKind::kSwitch},
                 {"json", "", "one object with every store", FlagKind::kSwitch}},
                CacheDirFlags(),
                StateFlags()}),
          RunFsck};
}

}  // namespace kvasir::cli
