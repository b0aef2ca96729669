// OpenAI's /v1/responses, and responses that are stored.
#pragma once

#include "api/turn_preparer.h"
#include "kvasir/session.h"
#include "server/generation_starter.h"
#include "server/route_table.h"
#include "text/piece_store.h"

namespace kvasir {

// The parts of a server that the handlers of responses use; all must outlive the table.
struct ResponseSources {
  GenerationStarter& generations;
  TurnPreparer& preparer;
  SessionStore& responses;  // SessionStore::Responses
  PieceStore& pieces;
};
void AddResponsesRoutes(const ResponseSources& from, RouteTable* table);

}  // namespace kvasir
