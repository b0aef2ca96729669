// kvasir models: lists what the Hugging Face cache holds, and removes it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "base/file_name.h"
#include "base/result.h"
#include "cli/cached_models.h"
#include "cli/command.h"
#include "cli/hub_model.h"
#include "hub/cache_listing.h"
#include "hub/cache_removal.h"
#include "hub/hub_settings.h"
#include "kvasir/engine.h"

namespace kvasir::cli {
namespace {

// One model of the cache, as --model takes it.
struct Row {
  hub::CachedModel model;
  std::string name;
  std::string refusal;  // why Kvasir cannot run it; "": it can
};

Row RowOf(hub::CachedModel model) {
  Row row;
  row.name = CachedNameOf(model);
  if (model.files < model.parts) {
    row.refusal =
        fmt::format("incomplete: {} of its {} parts are here; 'kvasir pull {}' fetches the rest",
                    model.files, model.parts, row.name);
  } else if (!model.missing.empty()) {
    row.refusal = fmt::format("incomplete: it lacks {}; 'kvasir pull {}' fetches the rest",
                              hub::TextOf(model.missing), row.name);
  }
  if (!row.refusal.empty()) {
    row.model = std::move(model);
    return row;
  }
  EngineOptions options;
  options.model = model.path.string();
  // Reads the headers of its files, not its weights.
  const auto plan = Engine::PlanMemory(options);
  if (!plan && plan.error().code != Code::kExhausted) row.refusal = plan.error().text();
  row.model = std::move(model);
  return row;
}

void PrintJson(const hub::HubCache& cache, const std::vector<Row>& rows) {
  nlohmann::ordered_json models = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    models.push_back({{"name", row.name},
                      {"repo", row.model.repo},
                      {"commit", row.model.commit},
                      {"refs", row.model.refs},
                      {"path", row.model.path.string()},
                      {"bytes", row.model.bytes},
                      {"runs", row.refusal.empty()}});
    if (!row.refusal.empty()) models.back()["refusal"] = row.refusal;
  }
  const nlohmann::ordered_json json = {{"cache", cache.root().string()}, {"models", models}};
  // A path may have bytes that are not UTF-8.
  fmt::print("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

enum class TableHead : uint8_t { kNone, kNames };

void PrintTable(const hub::HubCache& cache, const std::vector<Row>& rows, TableHead head) {
  if (rows.empty()) {
    fmt::print("no models in {}; 'kvasir pull owner/name' fetches one\n", cache.root().string());
  } else if (head == TableHead::kNames) {
    fmt::print("{:<56} {:>12}  {}\n", "NAME", "SIZE", "REVISION");
  }
  for (const Row& row : rows) {
    const std::string at = row.model.commit.substr(0, 12);
    fmt::print("{:<56} {:>12}  {}{}\n", row.name, FormatBytes(row.model.bytes), at,
               row.model.refs.empty() ? "" : fmt::format(" ({})", fmt::join(row.model.refs, ", ")));
    if (!row.refusal.empty()) fmt::print("    cannot run: {}\n", row.refusal);
  }
}

Result<int> List(const hub::HubCache& cache, bool is_json, TableHead head) {
  std::vector<Row> rows;
  for (hub::CachedModel& model : hub::ListCache(cache)) rows.push_back(RowOf(std::move(model)));
  is_json ? PrintJson(cache, rows) : PrintTable(cache, rows, head);
  return kExitDone;
}

Result<int> RunList(const Args& args) {
  KV_ASSIGN(const std::filesystem::path folder, hub::HubCacheFolder());
  return List(hub::HubCache(folder), args.Has("json"), TableHead::kNames);
}

Result<int> Remove(const hub::HubCache& cache, const std::string& name, bool is_json) {
  KV_ASSIGN(const hub::RepoRef ref, RequireRepoRef(name));
  KV_ASSIGN(const hub::Removed removed, hub::RemoveModel(cache, ref, WaitNotice(ref)));
  if (is_json) {
    const nlohmann::ordered_json json = {{"removed_files", removed.num_files},
                                         {"freed_bytes", removed.freed_bytes}};
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("{}: {} removed, {} freed\n", ref.Text(), FileCount(removed.num_files),
               FormatBytes(removed.freed_bytes));
  }
  return kExitDone;
}

// Returns the listed model that a word of 'kvasir rm' names.
Result<hub::CachedModel> RequireListed(const std::vector<hub::CachedModel>& models,
                                       const std::string& text) {
  KV_ASSIGN(auto found, FindCached(models, text));
  if (found) return std::move(*found);
  std::error_code error;
  const bool is_path = std::filesystem::exists(text, error);
  return Fail(Code::kNotFound, "{}: 'kvasir list' does not show it, so nothing was removed{}",
              Printable(text),
              is_path ? "; files outside the Hugging Face cache are yours to remove" : "");
}

// Removes the models that the words name: all of them, or none where one is unknown.
Result<int> RunRm(const Args& args) {
  KV_ASSIGN(const std::filesystem::path folder, hub::HubCacheFolder());
  const hub::HubCache cache(folder);
  const std::vector<std::string> words = args.List(kOperands);
  if (words.empty()) {
    return Fail(Code::kInvalidArgument, "which model? 'kvasir list' shows their names");
  }
  const std::vector<hub::CachedModel> listed = hub::ListCache(cache);
  std::vector<hub::CachedModel> models;
  for (const std::string& word : words) {
    KV_ASSIGN(models.emplace_back(), RequireListed(listed, word));
  }
  hub::Removed sum;
  for (const hub::CachedModel& model : models) {
    // The listed revision alone goes, whatever else has the name.
    const hub::RepoRef ref{model.repo, model.commit, model.label};
    KV_ASSIGN(const hub::Removed removed, hub::RemoveModel(cache, ref, WaitNotice(ref)));
    sum.num_files += removed.num_files;
    sum.freed_bytes += removed.freed_bytes;
    if (args.Has("json")) continue;
    fmt::print("deleted '{}': {}, {} freed\n", CachedNameOf(model), FileCount(removed.num_files),
               FormatBytes(removed.freed_bytes));
  }
  if (args.Has("json")) {
    const nlohmann::ordered_json json = {{"removed_files", sum.num_files},
                                         {"freed_bytes", sum.freed_bytes}};
    fmt::print("{}\n", json.dump(2));
  }
  return kExitDone;
}

Result<int> RunModels(const Args& args) {
  KV_ASSIGN(const std::filesystem::path folder, hub::HubCacheFolder());
  const hub::HubCache cache(folder);
  const std::vector<std::string> operands = args.List(kOperands);
  if (operands.empty() || operands == std::vector<std::string>{"list"}) {
    return List(cache, args.Has("json"), TableHead::kNone);
  }
  if (operands == std::vector<std::string>{"rm"}) {
    return Fail(Code::kInvalidArgument, "which model? 'kvasir models rm {}'", hub::kRepoForm);
  }
  if (operands.front() != "rm" || operands.size() != 2) {
    return Fail(Code::kInvalidArgument,
                "unknown words '{}': 'kvasir models' lists, 'kvasir models rm {}' removes",
                fmt::join(operands, " "), hub::kRepoForm);
  }
  return Remove(cache, operands[1], args.Has("json"));
}

}  // namespace

Command ListCommand() {
  return {
      "list",
      "lists the models that pull fetched: their names, sizes and revisions",
      "list",
      {{"json", "", "one object with every model", FlagKind::kSwitch}},
      RunList,
      "These are the models in the Hugging Face cache, as 'kvasir models' lists them. --model "
      "takes "
      "the names; run, chat, show and rm take them also without the owner and without -GGUF, and "
      "with a quant (Q8_0) or nothing after the colon."};
}

Command RmCommand() {
  return {"rm",
          "removes models that list shows",
          "rm Qwen/Qwen3-0.6B-GGUF:Q8_0",
          {{"json", "", "one object with what was removed", FlagKind::kSwitch}},
          RunRm,
          "It asks nothing. It removes what 'kvasir list' shows under the names and nothing else, "
          "and nothing at all where a name is unknown or may mean several models. Files that "
          "another model of the repository shares stay.",
          1024,
          {},
          {},
          "MODEL..."};
}

Command ModelsCommand() {
  return {
      "models",
      "lists the models in the Hugging Face cache; 'models rm owner/name[:file]' removes one",
      "models rm Qwen/Qwen3-0.6B-GGUF:Q8_0",
      {{"json", "", "one object with every model, or with what was removed", FlagKind::kSwitch}},
      RunModels,
      "The cache is HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub. rm asks "
      "nothing; it keeps files that another model of the repository shares.",
      2,
      {},
      "rm",
      "[rm MODEL]"};
}

}  // namespace kvasir::cli
