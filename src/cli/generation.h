// One request from the command line: text as it comes, progress of a long prompt, Ctrl-C.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/engine.h"

namespace kvasir::cli {

struct Outcome {
  std::vector<TokenId> tokens;
  std::string text;
  FinishReason finish_reason = FinishReason::kNone;  // kCancelled after Ctrl-C
  Receipt receipt;
  double total_ms = 0;
};

// Runs `request` (n = 1) to its end and calls `on_text` on this thread with each piece. Errors:
// those of Submit, and of the generation itself.
Result<Outcome> RunRequest(Engine& engine, GenerateRequest request,
                           const std::function<void(std::string_view)>& on_text);

// The ids of raw text; special tokens in it are parsed, and BOS is added as the tokenizer says.
// kUnsupported when the model has no tokenizer.
Result<std::vector<TokenId>> EncodePrompt(const Engine& engine, std::string_view text);

struct ChatMessage {
  std::string role, content;
};
// The prompt of a conversation by the model's chat template. The text of a message never becomes a
// special token. now_unix_s: what a template that writes the date takes for now; 0: the clock.
Result<std::vector<TokenId>> EncodeChat(const Engine& engine,
                                        const std::vector<ChatMessage>& messages,
                                        int64_t now_unix_s = 0);

}  // namespace kvasir::cli
