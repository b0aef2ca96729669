#include "server/served_model.h"

#include <utility>

#include "api/rewritten_history.h"
#include "base/result.h"

namespace kvasir {

Result<ServedModel> ServedModel::Make(const ServerOptions& options, const Engine& engine) {
  ServedModel model;
  if (options.chat_template) {
    KV_ASSIGN(model.own_template_, ChatTemplate::Parse(*options.chat_template));
  }
  ModelView& view = model.view_;
  view = ViewOf(engine, model.own_template_.get());
  KV_ASSIGN(view.template_variables,
            ParseVariables(options.chat_template_kwargs, &model.template_tree_));
  view.names.insert(view.names.begin(), options.aliases.begin(), options.aliases.end());
  view.takes_any_name = std::erase(view.names, "*") > 0;
  view.sampling = options.defaults.Over(view.sampling);
  view.max_tokens = options.defaults.max_tokens;
  view.template_now_unix_s = options.template_now_unix_s;
  view.max_thought_tokens = options.defaults.max_thought_tokens;
  view.thoughts = options.defaults.thoughts;
  view.verbose = options.defaults.verbose;
  if (options.pooling) {
    view.pooling = *options.pooling;
    if (!engine.card().decoder_start) view.no_embeddings.clear();
  }
  view.max_decoded_bytes = options.max_body_bytes;
  view.num_slots = options.slot_save_path ? engine.options().parallel : 0;
  view.max_prompts = engine.options().parallel + engine.options().max_queued;
  return model;
}

}  // namespace kvasir
