// OpenAI's paths: chat completions and completions.
#pragma once

#include <cstddef>
#include <string_view>

#include "api/turn_preparer.h"
#include "server/generation_starter.h"
#include "server/route_table.h"

namespace kvasir {

// The others must outlive the table.
void AddOpenAiRoutes(GenerationStarter& generations, TurnPreparer& preparer, RouteTable* table);

// Counts the tokens that the prompt of a chat completion's body has.
Result<size_t> CountChatTokens(std::string_view body, const ModelView& model);

}  // namespace kvasir
