// kvasir models: lists what the Hugging Face cache holds, and removes it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "base/result.h"
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
  const bool is_main = std::ranges::find(model.refs, "main") != model.refs.end();
  Row row;
  row.name =
      hub::RepoRef{model.repo, is_main ? std::nullopt : std::optional(model.commit), model.label}
          .Text();
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

void PrintTable(const hub::HubCache& cache, const std::vector<Row>& rows) {
  if (rows.empty()) {
    fmt::print("no models in {}; 'kvasir pull owner/name' fetches one\n", cache.root().string());
  }
  for (const Row& row : rows) {
    const std::string at = row.model.commit.substr(0, 12);
    fmt::print("{:<56} {:>12}  {}{}\n", row.name, FormatBytes(row.model.bytes), at,
               row.model.refs.empty() ? "" : fmt::format(" ({})", fmt::join(row.model.refs, ", ")));
    if (!row.refusal.empty()) fmt::print("    cannot run: {}\n", row.refusal);
  }
}

Result<int> List(const hub::HubCache& cache, bool is_json) {
  std::vector<Row> rows;
  for (hub::CachedModel& model : hub::ListCache(cache)) rows.push_back(RowOf(std::move(model)));
  is_json ? PrintJson(cache, rows) : PrintTable(cache, rows);
  return kExitDone;
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

Result<int> RunModels(const Args& args) {
  KV_ASSIGN(const std::filesystem::path folder, hub::HubCacheFolder());
  const hub::HubCache cache(folder);
  const std::vector<std::string> operands = args.List(kOperands);
  if (operands.empty()) return List(cache, args.Has("json"));
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

Command ModelsCommand() {
  return {
      "models",
      "lists the models in the Hugging Face cache; 'models rm owner/name[:file]' removes one",
      "models rm Qwen/Qwen3-0.6B-GGUF:Q8_0",
      {{"json", "", "one object with every model, or with what was removed", FlagKind::kSwitch}},
      RunModels,
      "The cache is HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub. rm asks "
      "nothing; it keeps files that another model of the repository shares.",
      2};
}

}  // namespace kvasir::cli
