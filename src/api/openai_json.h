// Parts of an answer that streams and bodies of OpenAI's form share.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "api/answer.h"

namespace kvasir {

// `finish_reason`; null: the choice goes on.
nlohmann::json FinishOf(const Answer::Choice& choice);
// `usage`.
nlohmann::json UsageJson(const Answer& answer);
// `kvasir`: the receipt of all prompts.
nlohmann::json FinalReceipt(const Answer& answer);

}  // namespace kvasir
