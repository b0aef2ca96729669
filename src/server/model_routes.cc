#include "server/model_routes.h"

#include <fmt/chrono.h>

#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "api/adapter_fields.h"
#include "api/openai_request.h"
#include "base/clock.h"
#include "http/errors.h"

namespace kvasir {
namespace {

using nlohmann::json;

// Lists a model as OpenAI's and as Anthropic's API have it: both clients read the members that they
// know.
json ModelEntry(const std::string& name, const std::vector<std::string>& names,
                const std::vector<std::string>& tags, const ModelCard& card, int64_t created) {
  return {{"id", name},
          {"aliases", names},
          {"tags", tags},
          {"object", "model"},
          {"created", created},
          {"type", "model"},
          {"display_name", name},
          {"created_at", fmt::format("{:%FT%TZ}", fmt::gmtime(std::time_t{created}))},
          {"lifecycle", "active"},
          {"max_input_tokens", card.ctx_size},
          {"owned_by", "kvasir"},
          {"kind", card.decoder_start ? "translation" : "text"},
          {"max_model_len", card.ctx_size},
          {"meta",
           {{"architecture", card.architecture},
            {"dtype", card.dtype},
            {"n_vocab", card.vocab_size},
            {"n_ctx", card.ctx_size},
            {"n_ctx_train", card.max_positions},
            {"n_params", card.parameters}}}};
}

// Lists an adapter that requests name as a model, as vLLM shows it.
json AdapterEntry(const AdapterCard& adapter, const Call& call, int64_t created) {
  json entry =
      ModelEntry(adapter.name, {adapter.name}, call.options.tags, call.engine.card(), created);
  entry["parent"] = call.model.names.front();
  entry["meta"]["lora_id"] = adapter.id;
  entry["meta"]["lora_rank"] = adapter.rank;
  entry["meta"]["digest"] = adapter.digest;
  return entry;
}

}  // namespace

void AddModelRoutes(RouteTable* table) {
  const int64_t created = UnixS();
  Route row{.path = "/v1/models",
            .method = "GET",
            .handler = [created](const Call& call) -> Outcome {
              const std::vector<std::string>& names = call.model.names;
              json data = json::array({ModelEntry(names.front(), names, call.options.tags,
                                                  call.engine.card(), created)});
              for (const AdapterCard& card : call.engine.Adapters()) {
                if (card.is_model) data.push_back(AdapterEntry(card, call, created));
              }
              return JsonResponse({{"object", "list"},
                                   {"first_id", data.front().at("id")},
                                   {"last_id", data.back().at("id")},
                                   {"has_more", false},
                                   {"data", data}});
            },
            .description = {.summary = "The names of the model."}};
  table->Add(row);
  table->Add(At("/models", row));
  row.handler = [created](const Call& call) -> Outcome {
    const std::string_view segment = call.path.substr(call.path.find("models/") + 7);
    const auto name = CheckModel(PercentDecoded(segment), call.model);
    if (!name) return ErrorResponse(name.error());
    if (const auto card = AdapterNamed(*name, call.model)) {
      return JsonResponse(AdapterEntry(*card, call, created));
    }
    return JsonResponse(
        ModelEntry(*name, call.model.names, call.options.tags, call.engine.card(), created));
  };
  row.description = {.summary = "One name of the model.", .rest = "model"};
  table->Add(At("/v1/models/*", row));
}

}  // namespace kvasir
