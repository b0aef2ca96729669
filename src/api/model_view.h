// What parsing a request needs from an engine's model.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "api/line_cure.h"
#include "api/prompt_heads.h"
#include "base/json_tree.h"
#include "chat/answer_format.h"
#include "chat/answer_parser.h"
#include "chat/chat_template.h"
#include "kvasir/engine.h"
#include "kvasir/types.h"
#include "text/piece_store.h"
#include "text/tokenizer.h"

namespace kvasir {

// A model as requests see it. All pointers must outlive it.
struct ModelView {
  std::vector<std::string> names;  // listed names, the main one first
  bool takes_any_name = false;     // other names mean the model too
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;
  JsonValue template_variables;     // of every chat: an object, or null
  int64_t template_now_unix_s = 0;  // the time that it is for the template; 0: the clock
  uint64_t template_steps = ChatRenderOptions().max_steps;
  PieceSpace pieces;                           // of the caller: what was encoded before
  HeadSpace heads;                             // the same: lines of chats that came before
  std::string no_text;                         // why the tokenizer is missing, and the remedy
  SamplingParams sampling;                     // the defaults of requests
  std::optional<uint32_t> max_tokens;          // the same; absent: each endpoint has one
  std::optional<uint32_t> max_thought_tokens;  // the same, of models that think
  ThoughtForm thoughts = ThoughtForm::kApart;  // the same
  bool verbose = false;                        // the same
  FimTokens fim;                               // marks of a prompt whose middle is filled in
  bool knows_developer = false;       // the template names this role; else it is rendered as system
  const LineCure* cure = nullptr;     // of system messages; null: none
  const ThinkMarks* think = nullptr;  // those of the template; null: it has none
  const CallFormat* calls = nullptr;  // how answers call tools; null: they do not
  std::vector<TokenId> special_marks;  // special tokens that are marks of those two
  std::vector<TokenId> ends;           // tokens that end an answer
  // Returns the adapters that are loaded. Empty in a view without an engine.
  std::function<std::vector<AdapterCard>()> adapters;
  bool drafts = false;               // requests' predictions are of use
  bool drops_tokens = false;         // a request may ask for retention
  Pooling pooling = Pooling::kLast;  // of embeddings
  std::string no_embeddings;         // why texts have none; empty: they have
  uint32_t hidden_size = 0;
  uint32_t vocab_size = 0;
  uint32_t ctx_size = 0;
  uint32_t max_ctx_size = 0;     // the largest that this model allows
  uint32_t num_slots = 0;        // of llama.cpp's server (server/slots.h); 0: id_slot says nothing
  uint32_t max_prompts = 1;      // of one request: as many as may run or wait at once
  size_t max_decoded_bytes = 0;  // of the text of token ids, which may be a hundred times as long
  // Returns the limit of a text's tokens: high enough to report the length of a prompt that is a
  // little too long.
  size_t max_text_tokens() const { return size_t{ctx_size} * 4 + 65536; }
};

// `own` replaces the model's template; nullptr: the model's. Both must outlive it. Its limits are
// those of a caller without HTTP.
ModelView ViewOf(const Engine& engine, const ChatTemplate* own);

// kNotFound unless `name` is a listed name, "default" or empty (llama.vim), also with ":latest", or
// the model takes any name. Returns the name to answer with.
Result<std::string> CheckModel(std::string_view name, const ModelView& model);
// Returns the kNotFound of a name that is unknown.
Error UnknownModel(std::string_view name, const ModelView& model);

}  // namespace kvasir
