// The list of protocols. A new one is its own file, and a line here.
#include "base/result.h"
#include "server/adapter_routes.h"
#include "server/anthropic_routes.h"
#include "server/cache_routes.h"
#include "server/embedding_routes.h"
#include "server/llama_routes.h"
#include "server/model_routes.h"
#include "server/ollama_routes.h"
#include "server/openai_routes.h"
#include "server/openapi.h"
#include "server/page_routes.h"
#include "server/responses_routes.h"
#include "server/service.h"
#include "server/session_routes.h"
#include "server/slot_routes.h"
#include "server/state_routes.h"
#include "server/text_routes.h"
#include "server/translation_routes.h"

namespace kvasir {

Status Service::AddRoutes() {
  const auto is_stopping = [this] {
    return draining_.load(std::memory_order_relaxed) || leaving_.load(std::memory_order_relaxed);
  };
  AddOpenAiRoutes(generations_, preparer_, &routes_);
  AddEmbeddingRoutes(generations_, &routes_);
  KV_TRY(AddTranslationRoutes(engine_, generations_, &routes_));
  AddLlamaRoutes(options_, generations_, &routes_);
  AddSessionRoutes({generations_, preparer_, keys_, sessions_, texts_}, &routes_);
  AddModelRoutes(&routes_);
  AddAdapterRoutes(keys_, &routes_);
  AddCacheRoutes(engine_, keys_, activity_, {sessions_, texts_, slots_, preparer_}, &routes_);
  AddSlotRoutes({generations_, keys_, sessions_, texts_, slots_}, &routes_);
  AddTextRoutes(&routes_);
  AddStateRoutes({keys_, sessions_, spans_, is_stopping}, model_.view(), &routes_);
  AddListRoutes(&routes_);
  AddPageRoutes(options_, &routes_);
  AddResponsesRoutes({generations_, preparer_, responses_, texts_}, &routes_);
  AddOllamaRoutes(generations_, preparer_, &routes_);
  AddAnthropicRoutes(generations_, preparer_, &routes_);
  return {};
}

}  // namespace kvasir
