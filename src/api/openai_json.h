// Parts of an answer that streams and bodies of OpenAI's form share.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "api/answer.h"

namespace kvasir {

// Returns `finish_reason`; null: the choice goes on.
nlohmann::json FinishOf(const Answer::Choice& choice);
// Returns `usage`.
nlohmann::json UsageJson(const Answer& answer);
// Adds `prompt_cache_diagnostics`: how the prompt differs from that of the answer that the request
// asks about, if it asks about one.
void AddCacheDiagnostics(const Answer& answer, nlohmann::json* body);
// Returns `kvasir`: the receipt of all prompts.
nlohmann::json FinalReceipt(const Answer& answer);

}  // namespace kvasir
