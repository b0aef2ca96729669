// Slots of llama.cpp's server: what runs in them, and files of them.
#pragma once

#include "access/key_ring.h"
#include "kvasir/session.h"
#include "server/generation_starter.h"
#include "server/kept_texts.h"
#include "server/route_table.h"
#include "server/slots.h"

namespace kvasir {

// The parts of a server that the handlers of slots use; all must outlive the table.
struct SlotSources {
  const GenerationStarter& generations;
  const KeyRing& keys;
  const SessionStore& sessions;
  KeptTexts& texts;
  Slots& slots;
};
void AddSlotRoutes(const SlotSources& from, RouteTable* table);

}  // namespace kvasir
