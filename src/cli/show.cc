// kvasir show: what a model is, from the headers of its files.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "cli/cached_models.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "kvasir/describe.h"

namespace kvasir::cli {
namespace {

// Returns "16 layers: 12 window of 512, 4 full".
std::string LayersText(const MemoryPlan& plan, uint32_t num_layers) {
  std::vector<std::string> groups;
  for (const KvGroupPlan& group : plan.groups) {
    groups.push_back(fmt::format("{} {}{}", group.layers, group.group,
                                 group.window ? fmt::format(" of {}", *group.window) : ""));
  }
  return fmt::format("{} ({})", num_layers, fmt::join(groups, ", "));
}

nlohmann::ordered_json JsonOf(const ModelDescription& described) {
  const auto& [card, plan] = described;
  return {{"model", card.id},
          {"path", card.path},
          {"architecture", card.architecture},
          {"parameters", card.parameters},
          {"weights", card.dtype},
          {"weights_bytes", plan.weights_bytes + plan.mapped_bytes},
          {"context_length", card.max_positions},
          {"embedding_length", card.hidden_size},
          {"vocab_size", card.vocab_size},
          {"layers", card.num_layers},
          {"kv_format", plan.kv_format},
          {"kv_bytes_per_token", plan.kv_bytes_per_token},
          {"translates", card.decoder_start.has_value()}};
}

Result<int> RunShow(const Args& given) {
  KV_ASSIGN(const Args args, WithModelOperand(given));
  KV_ASSIGN(const EngineOptions options,
            EngineOptionsOf(args, DiskDefault::kNone, ModelUse::kPlan));
  KV_ASSIGN(const ModelDescription described, DescribeModel(options));
  const auto& [card, plan] = described;
  if (args.Has("json")) {
    // A path may have bytes that are not UTF-8.
    fmt::print("{}\n",
               JsonOf(described).dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return kExitDone;
  }
  const auto line = [](std::string_view name, const std::string& value) {
    fmt::print("  {:<18}{}\n", name, value);
  };
  fmt::print("{}\n", card.id);
  line("path", card.path);
  line("architecture", card.architecture);
  line("parameters", card.parameters >= 1'000'000'000
                         ? fmt::format("{:.1f}B", static_cast<double>(card.parameters) / 1e9)
                         : fmt::format("{:.1f}M", static_cast<double>(card.parameters) / 1e6));
  line("weights",
       fmt::format("{}, {}", card.dtype, FormatBytes(plan.weights_bytes + plan.mapped_bytes)));
  line("context length", std::to_string(card.max_positions));
  line("embedding length", std::to_string(card.hidden_size));
  line("vocabulary", std::to_string(card.vocab_size));
  line("layers", LayersText(plan, card.num_layers));
  line("KV cache",
       fmt::format("{} a token as {}", FormatBytes(plan.kv_bytes_per_token), plan.kv_format));
  if (card.decoder_start) line("use", "translates sources (kvasir translate)");
  return kExitDone;
}

}  // namespace

Command ShowCommand() {
  return {"show",
          "what a model is: architecture, parameters, weights, context, KV of a token",
          "show Qwen/Qwen3-0.6B-GGUF:Q8_0",
          Join({{{"json", "", "one object", FlagKind::kSwitch}}, ModelFlags()}),
          RunShow,
          "kvasir show MODEL takes a path or a name that 'kvasir list' shows (default: the bundled "
          "model). It reads the headers of the files, not the weights; 'kvasir plan' says what a "
          "server of the model takes.",
          1,
          {},
          {},
          "[MODEL]"};
}

}  // namespace kvasir::cli
