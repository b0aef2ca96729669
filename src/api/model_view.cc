#include "api/model_view.h"

#include <string>

#include "api/infill_prompt.h"
#include "api/openai_request.h"

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
  view.adapters = [&engine] { return engine.Adapters(); };
  view.pooling = card.pooling.value_or(Pooling::kLast);
  view.no_embeddings = card.no_embeddings;
  view.hidden_size = card.hidden_size;
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

}  // namespace kvasir
