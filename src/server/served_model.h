// ServedModel: the model as requests to this server see it.
#pragma once

#include <memory>

#include "api/model_view.h"
#include "base/json_tree.h"
#include "chat/chat_template.h"
#include "kvasir/engine.h"
#include "server/server.h"

namespace kvasir {

// Owns what a ModelView of a server refers to. Immutable; thread-safe.
class ServedModel {
 public:
  // kInvalidArgument: options.chat_template or a pattern of lines cannot be parsed, or
  // chat_template_kwargs is not an object. The engine's tokenizer and template must outlive it.
  static Result<ServedModel> Make(const ServerOptions& options, const Engine& engine);

  const ModelView& view() const { return view_; }

 private:
  ServedModel() = default;

  std::unique_ptr<ChatTemplate> own_template_;  // null: the model's
  JsonTree template_tree_;                      // of view_.template_variables
  std::unique_ptr<LineCure> cure_ = std::make_unique<LineCure>();
  ModelView view_;
};

}  // namespace kvasir
