// /v1/sessions: conversations that are edited, forked and forgotten.
#pragma once

#include "access/key_ring.h"
#include "api/turn_preparer.h"
#include "kvasir/session.h"
#include "server/generation_starter.h"
#include "server/kept_texts.h"
#include "server/route_table.h"

namespace kvasir {

// The parts of a server that the handlers of sessions use; all must outlive the table.
struct SessionSources {
  GenerationStarter& generations;
  TurnPreparer& preparer;
  const KeyRing& keys;
  SessionStore& sessions;
  KeptTexts& texts;
};
void AddSessionRoutes(const SessionSources& from, RouteTable* table);

}  // namespace kvasir
