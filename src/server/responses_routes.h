// OpenAI's /v1/responses, and responses that are stored.
#pragma once

#include "api/turn_preparer.h"
#include "kvasir/session.h"
#include "server/generation_starter.h"
#include "server/kept_texts.h"
#include "server/route_table.h"

namespace kvasir {

// The parts of a server that the handlers of responses use; all must outlive the table.
struct ResponseSources {
  GenerationStarter& generations;
  TurnPreparer& preparer;
  SessionStore& responses;  // SessionStore::Responses
  KeptTexts& texts;
};
void AddResponsesRoutes(const ResponseSources& from, RouteTable* table);

}  // namespace kvasir
