#include "server/served_model.h"

#include <fmt/ranges.h>

#include <utility>

#include "api/rewritten_history.h"
#include "base/result.h"

namespace kvasir {
namespace {

Status AddLineRules(const char* flag, const std::vector<std::string>& texts, LineRules* rules) {
  for (const std::string& text : texts) {
    if (const Status added = rules->Add(text); !added) {
      return Fail(Code::kInvalidArgument, "{}: '{}' is not one of {}, and not a pattern: {}", flag,
                  text, fmt::join(LineRules::names(), ", "), added.error().message);
    }
  }
  return {};
}

}  // namespace

Result<ServedModel> ServedModel::Make(const ServerOptions& options, const Engine& engine) {
  ServedModel model;
  if (options.chat_template) {
    KV_ASSIGN(model.own_template_, ChatTemplate::Parse(*options.chat_template));
  }
  ModelView& view = model.view_;
  view = ViewOf(engine, model.own_template_.get());
  KV_ASSIGN(view.template_variables,
            ParseVariables(options.chat_template_kwargs, &model.template_tree_));
  KV_TRY(AddLineRules("--drop-lines", options.drop_lines, &model.cure_->dropped));
  KV_TRY(AddLineRules("--move-lines", options.move_lines, &model.cure_->moved));
  if (!model.cure_->empty()) view.cure = model.cure_.get();
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
