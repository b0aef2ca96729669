#include "api/model_view.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>

#include "api/adapter_fields.h"
#include "api/infill_prompt.h"
#include "api/openai_request.h"
#include "api/request_limits.h"
#include "base/model_tag.h"
#include "base/result.h"

namespace kvasir {

ModelView ViewOf(const Engine& engine, const ChatTemplate* own) {
  const ModelCard& card = engine.card();
  ModelView view;
  view.names = {card.id};
  view.tokenizer = engine.tokenizer();
  view.no_text = card.no_text.value_or("");
  view.chat_template = own != nullptr ? own : engine.chat_template();
  view.sampling = card.sampling.Over({});
  view.ends = card.eos;
  const EngineOptions& options = engine.options();
  view.drafts = options.speculate != Speculate::kOff && options.draft_max > 0 &&
                options.cache_mode != CacheMode::kNone && !card.decoder_start;
  view.adapters = [&engine] { return engine.Adapters(); };
  view.pooling = card.pooling.value_or(Pooling::kLast);
  view.no_embeddings = card.no_embeddings;
  view.hidden_size = card.hidden_size;
  view.drops_tokens = card.no_retention.empty();
  view.vocab_size = card.vocab_size;
  view.ctx_size = card.ctx_size;
  view.max_ctx_size = card.max_positions;
  const std::string text = view.chat_template != nullptr ? AllSources(*view.chat_template) : "";
  view.knows_developer = text.find("developer") != std::string::npos;
  view.think = FindThinkMarks(text);
  view.calls = &FindCallFormat(text);
  if (view.tokenizer) {
    view.special_marks = SpecialMarks(view);
    view.fim = FindFimTokens(card.fim, *view.tokenizer);
  }
  return view;
}

Error UnknownModel(std::string_view name, const ModelView& model) {
  std::vector<std::string> known = model.names;
  for (AdapterCard& card : model.adapters ? model.adapters() : std::vector<AdapterCard>()) {
    if (card.is_model) known.push_back(std::move(card.name));
  }
  return {Code::kNotFound,
          fmt::format("unknown model \"{}\" (known: {}); a server that is started with --alias '*' "
                      "accepts every name",
                      name, fmt::join(known, ", ")),
          "model"};
}

Result<std::string> CheckModel(std::string_view given, const ModelView& model) {
  const auto is_known = [&](std::string_view name) {
    return std::ranges::find(model.names, name) != model.names.end() ||
           AdapterNamed(name, model).has_value();
  };
  if (is_known(given)) return std::string(given);
  const std::string name(WithoutLatest(given));
  if (name == "default" || name.empty()) return model.names.front();
  if (model.takes_any_name && name.size() <= kMaxAnyNameBytes) return name;
  if (name.size() < given.size() && is_known(name)) return name;
  if (model.takes_any_name) {
    return FailField(Code::kNotFound, "model", "the name has {} bytes; give one of at most {}",
                     name.size(), kMaxAnyNameBytes);
  }
  return tl::unexpected(UnknownModel(given, model));
}

}  // namespace kvasir
