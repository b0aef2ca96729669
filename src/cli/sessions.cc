// kvasir sessions: lists, shows, removes, exports and imports sessions on the disk.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/wipe.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/progress.h"
#include "cli/state_flags.h"
#include "kvasir/disk.h"
#include "kvasir/session_file.h"

namespace kvasir::cli {
namespace {

constexpr std::string_view kVerbs =
    "list, show ID, rm ID, rm --unreadable, export ID, export --all, import FILE";

std::string UtcText(int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

// The open file of a folder, and a store that reads from it.
class OpenSessions {
 public:
  // Opens the folder; `identity` is that of what is imported.
  static Result<OpenSessions> Open(const Args& args, SessionIdentity identity = {}) {
    KV_ASSIGN(const std::optional<std::string> folder, ReadDiskFolder(args));
    if (!folder) {
      return Fail(Code::kInvalidArgument,
                  "the cache folder is unknown; name a folder with --disk DIR");
    }
    KV_ASSIGN(SecretPlace secret, ReadStateFlags(args));
    SessionFileOptions options{
        .folder = *folder, .secret = std::move(secret), .identity = std::move(identity)};
    KV_ASSIGN(options.cap_bytes, args.Bytes("disk-cap", options.cap_bytes));
    std::error_code error;
    const bool is_there = std::filesystem::exists(*folder + "/sessions.db", error);
    if (!is_there && args.List(kOperands).front() != "import") {
      return Fail(Code::kNotFound, "there are no sessions in {}", *folder);
    }
    OpenSessions open;
    KV_ASSIGN(open.file_, SessionFile::Open(options));
    return open;
  }

  SessionFile& file() { return *file_; }
  SessionStore& store() { return *store_; }

  // kNotFound: the file has no such session.
  Result<SessionFile::Row> Find(const std::string& id) {
    KV_ASSIGN(const std::vector<SessionFile::Row> rows, file_->List());
    const auto row = std::ranges::find(rows, id, &SessionFile::Row::id);
    if (row == rows.end() || KindOfId(id) == SessionKind::kResponse)
      return Fail(Code::kNotFound, "the file has no session {}; 'kvasir sessions list' shows them",
                  id);
    if (!row->is_readable()) {
      return Fail(Code::kNotFound,
                  "the session {} is not readable with this secret; 'kvasir sessions rm "
                  "--unreadable' removes all of these",
                  id);
    }
    return *row;
  }
  Result<SessionRecord> Read(const SessionFile::Row& row) {
    return file_->ReadAsItIs(*store_, row.owner, row.id);
  }

 private:
  std::unique_ptr<SessionFile> file_;
  std::unique_ptr<SessionStore> store_ =
      std::make_unique<SessionStore>(SessionLimits{.memory_bytes = UINT64_MAX});
};

Result<int> List(OpenSessions& open, bool is_json) {
  KV_ASSIGN(std::vector<SessionFile::Row> rows, open.file().List());
  std::ranges::reverse(rows);  // the newest first, as the server lists them
  std::erase_if(
      rows, [](const SessionFile::Row& row) { return KindOfId(row.id) == SessionKind::kResponse; });
  auto list = nlohmann::ordered_json::array();
  size_t unreadable = 0;
  for (const SessionFile::Row& row : rows) {
    if (!row.is_readable()) {
      ++unreadable;
      continue;
    }
    const auto record = open.Read(row);
    list.push_back({{"id", row.id},
                    {"used", UtcText(row.used_s)},
                    {"bytes", row.bytes},
                    {"damaged", !record}});
    if (!record) {
      if (!is_json) fmt::print("{}  damaged: {}\n", row.id, record.error().message);
      continue;
    }
    list.back()["tenant"] = record->tenant;
    list.back()["created"] = UtcText(record->created_s);
    list.back()["model"] = record->state.setup->model;
    list.back()["messages"] = record->state.messages.size();
    if (is_json) continue;
    fmt::print("{}  last used {}  {:>10}  {}: {}, {}\n", row.id, UtcText(row.used_s),
               FormatBytes(row.bytes), record->tenant, record->state.setup->model,
               CountText(record->state.messages.size(), "message"));
  }
  if (is_json) {
    const nlohmann::ordered_json all = {{"sessions", std::move(list)}, {"unreadable", unreadable}};
    fmt::print("{}\n", all.dump(2));
    return kExitDone;
  }
  if (rows.empty()) fmt::print("no sessions\n");
  if (unreadable > 0) {
    fmt::print(
        "{}: not readable with this secret; 'kvasir sessions rm --unreadable' removes them\n",
        CountText(unreadable, "session"));
  }
  return kExitDone;
}

Result<int> Show(OpenSessions& open, const std::string& id, bool is_export) {
  KV_ASSIGN(const SessionFile::Row row, open.Find(id));
  KV_ASSIGN(const SessionRecord record, open.Read(row));
  if (is_export) {
    fmt::print("{}\n", ToJson(record));
    return kExitDone;
  }
  const SessionState& state = record.state;
  for (size_t i = 0; i < state.messages.size(); ++i) {
    fmt::print("{} {}: {}\n", i, state.messages[i]->role, state.messages[i]->content);
  }
  return kExitDone;
}

// Prints every session that opens, each in a line of JSON, the oldest first.
Result<int> ExportAll(OpenSessions& open) {
  KV_ASSIGN(const std::vector<SessionFile::Row> rows, open.file().List());
  size_t left = 0;
  std::string why;
  for (const SessionFile::Row& row : rows) {
    if (KindOfId(row.id) == SessionKind::kResponse) continue;  // they stay where they were stored
    if (!row.is_readable()) {
      ++left;
      why = "not readable with this secret";
      continue;
    }
    const auto record = open.Read(row);
    if (!record) {
      ++left;
      why = record.error().message;
      continue;
    }
    std::string json = ToJson(*record);
    fmt::print("{}\n", json);
    Wipe(&json);
  }
  if (left == 0) return kExitDone;
  fmt::print(stderr, "kvasir: {} could not be exported; the last one: {}\n",
             CountText(left, "session"), why);
  return kExitFailed;
}

// Returns the objects of a text: each begins a line. (In one that was written in several lines, the
// inner ones do not.)
std::vector<std::string_view> ObjectsOf(std::string_view text) {
  std::vector<std::string_view> objects;
  for (size_t begin = 0; begin < text.size();) {
    const size_t next = text.find("\n{", begin);
    const size_t end = next == std::string_view::npos ? text.size() : next + 1;
    objects.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  if (objects.empty()) objects.emplace_back();
  return objects;
}

// Reads the session of one object; `where` names it in an error.
Result<SessionRecord> ReadObject(const Args& args, std::string_view json,
                                 const std::string& where) {
  SessionStore store(SessionLimits{.memory_bytes = UINT64_MAX});
  auto record = ParseSessionRecord(store, json);
  if (!record) return Fail(record.error().code, "{}: {}", where, record.error().message);
  if (!IsSessionId(record->id)) {
    return Fail(Code::kInvalidArgument, "{}: session: id is not sess_ and 32 hex digits", where);
  }
  if (args.Has("tenant")) record->tenant = *args.Text("tenant");
  return record;
}

// Takes all sessions of a file or, where one is wrong, none. Those that are there already stay as
// they are.
Result<int> Import(const Args& args, const std::string& path) {
  KV_TRY(ReadDiskFolder(args));
  Progress progress;
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file.is_open() || file.bad()) return Fail(Code::kNotFound, "{} cannot be read", path);
  const std::vector<std::string_view> objects = ObjectsOf(text);
  const auto where = [&](size_t i) {
    return objects.size() == 1 ? path : fmt::format("{}, session {}", path, i + 1);
  };
  const auto show = [&](std::string_view what, size_t done) {
    progress.Show(fmt::format("{}: {} of {}", what, done, CountText(objects.size(), "session")));
  };
  for (size_t i = 0; i < objects.size(); ++i) {
    KV_TRY(ReadObject(args, objects[i], where(i)));
    show("checking", i + 1);
  }
  std::optional<OpenSessions> open;
  SessionIdentity identity;  // of what `open` writes
  std::optional<Error> is_there;
  size_t num_there = 0;
  for (size_t i = 0; i < objects.size(); ++i) {
    KV_ASSIGN(const SessionRecord record, ReadObject(args, objects[i], where(i)));
    if (!open || record.identity != identity) {
      open.reset();
      KV_ASSIGN(open, OpenSessions::Open(args, record.identity));
      identity = record.identity;
    }
    const Status written = open->file().Write(record, 1, SessionFile::Scrub::kNo);
    show("importing", i + 1);
    if (written) {
      if (isatty(STDOUT_FILENO) == 1) progress.Clear();  // the ids show the progress too
      fmt::print("{}\n", record.id);
    } else if (written.error().code == Code::kInvalidArgument) {
      is_there = written.error();
      ++num_there;
    } else {
      return tl::unexpected(written.error());
    }
  }
  Wipe(&text);
  if (num_there == 0) return kExitDone;
  if (objects.size() == 1) return tl::unexpected(*is_there);
  return Fail(Code::kInvalidArgument, "{} of {} were there already and stay as they are", num_there,
              CountText(objects.size(), "session"));
}

Result<int> RunSessions(const Args& args) {
  const std::vector<std::string> words = args.List(kOperands);
  const std::string verb = words.empty() ? "" : words.front();
  const bool takes_one = verb == "show" || verb == "rm" || verb == "export" || verb == "import";
  const bool rm_unreadable = args.Has("unreadable") && verb == "rm" && words.size() == 1;
  const bool exports_all = args.Has("all") && verb == "export" && words.size() == 1;
  const bool is_whole = rm_unreadable || exports_all;
  if (args.Has("unreadable") && !rm_unreadable) {
    return Fail(Code::kInvalidArgument, "--unreadable: is for rm alone, without an id");
  }
  if (takes_one && words.size() == 1 && !is_whole) {
    return Fail(Code::kInvalidArgument, "{} needs {}", verb,
                verb == "import" ? "the file that export wrote"
                                 : "the id of a session; 'kvasir sessions list' shows them");
  }
  if ((verb != "list" && !takes_one) || words.size() != (takes_one && !is_whole ? 2u : 1u)) {
    return Fail(Code::kInvalidArgument, "{}'kvasir sessions' takes one of: {}",
                words.empty() ? "" : fmt::format("unknown words '{}'; ", fmt::join(words, " ")),
                kVerbs);
  }
  if (args.Has("all") && !exports_all) {
    return Fail(Code::kInvalidArgument, "--all: is for export alone, without an id");
  }
  if (args.Has("tenant") && verb != "import") {
    return Fail(Code::kInvalidArgument, "--tenant: is for import alone");
  }
  if (verb == "import") return Import(args, words[1]);
  Result<OpenSessions> opened = OpenSessions::Open(args);
  if (verb == "list" && !opened && opened.error().code == Code::kNotFound) {
    // An empty list is an answer, and no file is made for it.
    fmt::print("{}\n",
               args.Has("json") ? R"({"sessions":[],"unreadable":0})" : opened.error().message);
    return kExitDone;
  }
  KV_ASSIGN(OpenSessions open, std::move(opened));
  if (rm_unreadable) {
    KV_ASSIGN(const std::vector<SessionFile::Row> rows, open.file().List());
    const auto responses = std::ranges::count_if(rows, [](const SessionFile::Row& row) {
      return !row.is_readable() && KindOfId(row.id) == SessionKind::kResponse;
    });
    KV_ASSIGN(const uint64_t removed, open.file().RemoveUnreadable());
    const uint64_t sessions = removed - std::min<uint64_t>(removed, responses);
    fmt::print("{}{} removed\n", CountText(sessions, "session"),
               responses == 0 ? "" : " and " + CountText(responses, "stored response"));
    return kExitDone;
  }
  if (verb == "list") return List(open, args.Has("json"));
  if (exports_all) return ExportAll(open);
  if (verb != "rm") return Show(open, words[1], verb == "export" || args.Has("json"));
  KV_ASSIGN(const SessionFile::Row row, open.Find(words[1]));
  KV_TRY(open.file().Remove(row.owner, row.id));
  return kExitDone;
}

}  // namespace

Command SessionsCommand() {
  return {"sessions",
          "lists, shows, removes, exports and imports sessions on the disk",
          "sessions export sess_0123456789abcdef0123456789abcdef > session.json",
          Join({{{"disk", "DIR", "folder of the disk tier (default: kv in the cache folder)"},
                 {"disk-cap", "SIZE",
                  "limit of everything in the folder, as serve has it (default 20GiB)"},
                 {"tenant", "NAME", "whose session import makes (default: as it was exported)"},
                 {"all", "",
                  "with export: all sessions of the folder, each in a line, instead of one; for "
                  "import on another machine",
                  FlagKind::kSwitch},
                 {"unreadable", "",
                  "with rm: all sessions that this secret does not unseal, and files of sessions "
                  "that were set aside, instead of one",
                  FlagKind::kSwitch},
                 {"json", "", "one object with every session; of show, the session",
                  FlagKind::kSwitch}},
                CacheDirFlags(),
                StateFlags()}),
          RunSessions,
          fmt::format("Words: {}. A file of sessions that a server has open belongs to it: stop "
                      "the server first, or ask it (/v1/sessions). rm removes the text and ids of "
                      "a session; its KV leaves with the disk's other blocks, or by DELETE "
                      "/v1/sessions/ID of a server.\n",
                      kVerbs),
          2,
          {},
          "list show rm export import",
          "list | show ID | rm ID | export ID | import FILE"};
}

}  // namespace kvasir::cli
