#include "server/llama_routes.h"

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <utility>

#include "api/llama_request.h"
#include "api/request_limits.h"
#include "server/request_schema.h"

namespace kvasir {
namespace {

class LlamaHandlers {
 public:
  LlamaHandlers(SamplingParams sampling, GenerationStarter& generations)
      : sampling_(std::move(sampling)), generations_(generations) {}

  Outcome Complete(const Call& call) {
    return generations_.Start(ParseLlamaRequest(call.request.body, ModelOf(call)), call, "prompt");
  }

  Outcome Infill(const Call& call) {
    return generations_.Start(ParseInfillRequest(call.request.body, ModelOf(call)), call,
                              "input_prefix");
  }

 private:
  ModelView ModelOf(const Call& call) const {
    ModelView model = call.model;
    model.sampling = sampling_;
    return model;
  }

  const SamplingParams sampling_;  // where a request says nothing
  GenerationStarter& generations_;
};

constexpr const char* kInfillSchema =
    R"("input_prefix":{"type":"string"},"input_suffix":{"type":"string"},
    "prompt":{"type":"string"},"input_extra":{"type":"array","items":{"type":"object",
    "required":["text"],"properties":{"text":{"type":"string"},
    "filename":{"type":["string","null"]}}}})";

// Describes the fields that both paths have beside those of sampling.
std::string LlamaSchema() {
  return fmt::format(
      R"("n_probs":{{"type":"integer","minimum":0,"maximum":{}}},
      "post_sampling_probs":{{"type":"boolean"}},
      "t_max_predict_ms":{{"type":"integer","minimum":-1}},
      "response_fields":{{"type":["array","string"],"items":{{"type":"string"}}}},
      "n_cmpl":{{"type":"integer","minimum":1,"maximum":{}}},
      "id_slot":{{"type":"integer","minimum":-1}})",
      kMaxTopLogprobs, kMaxChoices);
}

}  // namespace

void AddLlamaRoutes(const ServerOptions& options, GenerationStarter& generations,
                    RouteTable* table) {
  const auto own =
      std::make_shared<LlamaHandlers>(options.defaults.Over(LlamaSampling()), generations);
  Route row{.path = "/completion",
            .method = "POST",
            .handler = std::bind_front(&LlamaHandlers::Complete, own),
            .access = Access::kTenant,
            .work = Route::kGeneration,
            .for_model = Route::kTextModel};
  row.description = {.summary = "Continues a prompt, in the form of llama.cpp's server.",
                     .properties = JoinedFields(
                         {LlamaSchema(), SpecialsSchema(), AnyPromptSchema(), SamplingSchema()}),
                     .required = R"(["prompt"])",
                     .answer = "Answers",
                     .streams = true};
  table->Add(row);
  row.description.summary = "The same as /completion.";
  table->Add(At("/completions", row));
  row.handler = std::bind_front(&LlamaHandlers::Infill, own);
  row.description = {.summary = "Fills in the middle of a text, in the form of llama.cpp's server.",
                     .properties = JoinedFields({LlamaSchema(), SamplingSchema(), kInfillSchema}),
                     .required = R"(["input_prefix","input_suffix"])",
                     .answer = "Answers",
                     .streams = true};
  table->Add(At("/infill", row));
}

}  // namespace kvasir
