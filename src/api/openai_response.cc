#include "api/openai_response.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "api/logprobs_json.h"
#include "http/json_fields.h"
#include "observe/receipt_json.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr uint64_t kTextBytes = 8;  // average of a token, with the spare capacity of strings

// Memory of the deques of each choice, which allocate a first block.
constexpr uint64_t kDequeBytes = 512 + 64 + 2 * 16;

// What a stream says of a piece; null: nothing. `index`: the call's.
json DeltaOf(const AnswerEvent& event, size_t index) {
  switch (event.kind) {
    case AnswerEvent::Kind::kReasoning:
      return {{"reasoning_content", event.text}};
    case AnswerEvent::Kind::kContent:
      return {{"content", event.text}};
    case AnswerEvent::Kind::kCallBegin: {
      json call = {{"index", index}, {"id", event.id}, {"type", "function"}};
      call["function"] = {{"name", event.text}, {"arguments", ""}};
      return {{"tool_calls", json::array({std::move(call)})}};
    }
    case AnswerEvent::Kind::kArguments: {
      json call = {{"index", index}, {"function", {{"arguments", event.text}}}};
      return {{"tool_calls", json::array({std::move(call)})}};
    }
    case AnswerEvent::Kind::kCallEnd:
      break;
  }
  return {};
}

Error ErrorOf(const Event& event) {
  if (event.error) return *event.error;
  return {Code::kUnavailable, "the generation was cancelled: the server is stopping"};
}

}  // namespace

Answer::Answer(AnswerSpec spec, size_t num_prompts, std::string id, int64_t created,
               const Tokenizer* tokenizer)
    : spec_(std::move(spec)),
      tokenizer_(tokenizer),
      choices_(num_prompts * spec_.n),
      id_((spec_.chat ? "chatcmpl-" : "cmpl-") + id),
      created_(created),
      open_requests_(num_prompts),
      open_choices_(choices_.size()) {
  held_bytes_ = sizeof(Answer) + choices_.size() * (sizeof(Choice) + 3 * kDequeBytes);
  for (const std::string& text : spec_.echo) held_bytes_ += sizeof(text) + text.capacity();
  if (spec_.verbosely) {
    held_bytes_ += spec_.verbosely->settings.capacity();
    for (const std::string& text : spec_.verbosely->prompts) {
      held_bytes_ += sizeof(text) + text.capacity();
    }
  }
  for (size_t i = 0; i < choices_.size(); ++i) {
    choices_[i].characters = CountCharacters(EchoOf(i));
    if (!spec_.reading) continue;
    choices_[i].read.reset(new Pieces{AnswerPieces(spec_.reading, id_, static_cast<uint32_t>(i))});
    held_bytes_ += sizeof(Pieces) + choices_[i].read->pieces.held_bytes();
  }
  scored_.resize(spec_.scored_from.size());
  for (size_t i = 0; i < spec_.scored_from.size(); ++i) {
    scored_texts_.push_back(tokenizer_->StartDecoder(SpecialTokens::kShow));
    AddScored(i, {.id = spec_.scored_from[i], .logprob = kNoLogprob});
  }
}

// A token of a prompt. The first one may not be in the echo: the tokenizer may have added it.
void Answer::AddScored(size_t prompt, GeneratedToken token) {
  scored_texts_[prompt]->Append(token.id, &token.text);
  const bool is_first = std::isnan(token.logprob);
  if (is_first && !spec_.echo[prompt].starts_with(token.text)) token.text.clear();
  const uint64_t bytes = ScoredTokens::TokenBytes(token.top.size());
  if (spec_.stream) {
    held_bytes_ += bytes + sizeof(token);
    scored_[prompt].push_back(std::move(token));
    return;
  }
  for (size_t i = 0; i < spec_.n; ++i) choices_[prompt * spec_.n + i].scored.Add(token);
  held_bytes_ += bytes * spec_.n;
}

uint64_t Answer::ExpectedBytes(uint64_t tokens) const {
  uint64_t token_bytes = kTextBytes;
  if (spec_.return_token_ids || spec_.return_tokens) token_bytes += sizeof(TokenId);
  uint64_t scored_bytes = 0;
  if (spec_.logprobs) {
    token_bytes += ScoredTokens::TokenBytes(*spec_.logprobs);
    if (!spec_.stream)
      scored_bytes = spec_.scored_tokens * ScoredTokens::TokenBytes(*spec_.logprobs);
  }
  return held_bytes_ + tokens * token_bytes + scored_bytes;
}

// The text before a choice's text.
std::string_view Answer::EchoOf(size_t index) const {
  return spec_.echo.empty() ? std::string_view() : spec_.echo[index / spec_.n];
}

std::string Answer::Take(size_t prompt, const Event& event) {
  if (done()) return "";
  if (event.finish_reason == FinishReason::kError ||
      event.finish_reason == FinishReason::kCancelled || event.error) {
    error_ = ErrorOf(event);
    return "";
  }
  if (keeper_) {
    keeper_->Take(event);
    const Status kept = event.last ? keeper_->Finish() : Status();
    if (!kept) {
      error_ = kept.error();
      return "";
    }
  }
  const auto index = static_cast<uint32_t>(prompt * spec_.n + event.choice);
  Choice& choice = choices_[index];
  choice.num_tokens += static_cast<uint32_t>(event.tokens.size());
  const bool finishes =
      event.finish_reason != FinishReason::kNone && choice.finish == FinishReason::kNone;
  if (finishes) {
    choice.finish = event.finish_reason;
    choice.stop_match = event.stop_match;
    --open_choices_;
  }
  for (const GeneratedToken& token : event.scored) AddScored(prompt, token);
  See(index, event);
  std::string out;
  if (!spec_.stream) {
    Collect(&choice, event);
  } else {
    const bool answers = choice.num_tokens > event.tokens.size();
    if (event.progress && spec_.return_progress && !answers) {
      const Progress& now = *event.progress;
      // What the cache had, before what was computed.
      if (!choice.has_progress && now.processed > now.cached) {
        out = ProgressEvent(index,
                            {.total = now.total, .processed = now.cached, .cached = now.cached});
      }
      choice.has_progress = true;
      out += ProgressEvent(index, now);
    }
    if (finishes || !event.tokens.empty() || !event.text.empty()) out += StreamEvent(index, event);
  }
  if (event.last) {
    AddReceipt(prompt, event);
    --open_requests_;
    if (spec_.stream) out += EndEvents(prompt);
  }
  return out;
}

void Answer::CollectText(Choice* choice, const Event& event) {
  if (!choice->read) {
    choice->text += event.text;
    return;
  }
  for (AnswerEvent& piece : choice->read->pieces.Take(event)) {
    switch (piece.kind) {
      case AnswerEvent::Kind::kContent:
        choice->text += piece.text;
        break;
      case AnswerEvent::Kind::kReasoning:
        choice->read->reasoning += piece.text;
        break;
      case AnswerEvent::Kind::kCallBegin:
        choice->read->calls.push_back({std::move(piece.text), "", std::move(piece.id)});
        held_bytes_ += sizeof(ToolCall) + choice->read->calls.back().name.capacity();
        break;
      case AnswerEvent::Kind::kArguments:
        choice->read->calls.back().arguments += piece.text;
        held_bytes_ += piece.text.size();
        break;
      case AnswerEvent::Kind::kCallEnd:
        break;
    }
  }
}

json Answer::FinishOf(const Choice& choice) const {
  if (choice.finish == FinishReason::kNone) return {};
  const bool calls = choice.read && choice.read->pieces.num_calls() > 0;
  return calls && choice.finish == FinishReason::kStop ? "tool_calls" : ToString(choice.finish);
}

void Answer::Collect(Choice* choice, const Event& event) {
  const auto text_bytes = [choice] {
    return choice->text.capacity() +
           (choice->read ? choice->read->reasoning.capacity() + choice->read->pieces.held_bytes()
                         : 0);
  };
  const uint64_t before = text_bytes();
  CollectText(choice, event);
  held_bytes_ += text_bytes() - before;
  for (const GeneratedToken& token : event.tokens) {
    if (spec_.return_token_ids || spec_.return_tokens) {
      choice->ids.push_back(token.id);
      held_bytes_ += sizeof(TokenId);
    }
    if (!spec_.logprobs) continue;
    choice->scored.Add(token);
    held_bytes_ += ScoredTokens::TokenBytes(token.top.size());
  }
}

std::string Answer::StreamEvent(uint32_t index, const Event& event) {
  Choice& choice = choices_[index];
  std::string out, text = event.text;
  std::vector<GeneratedToken> scored;  // with the prompt's, in the first event
  if (spec_.logprobs) scored = event.tokens;
  uint64_t scored_at = choice.characters;
  if (!choice.started && !scored_.empty()) {
    const auto& own = scored_[index / spec_.n];
    scored.insert(scored.begin(), own.begin(), own.end());
    scored_at = 0;
  }
  if (!choice.started) {
    choice.started = true;
    text = std::string(EchoOf(index)) + text;
    if (spec_.chat) {
      json first = Envelope(true);
      const json role = {{"role", "assistant"}, {"content", ""}};
      first["choices"] = json::array({json{
          {"index", index}, {"delta", role}, {"logprobs", nullptr}, {"finish_reason", nullptr}}});
      out = SseEvent(first);
    }
  }
  json chunk = Envelope(true);
  if (event.progress && spec_.timings_per_token) {
    chunk["timings"] = TimingsJson(TimingsOf(*event.progress, choice.num_tokens));
  }
  bool first = true;  // it has what is known of the tokens
  for (json& body : BodiesOf(&choice, event, text)) {
    json one = {{"index", index}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
    one[spec_.chat ? "delta" : "text"] = std::move(body);
    std::vector<TokenId> ids;
    if (first) {
      for (const GeneratedToken& token : event.tokens) ids.push_back(token.id);
    }
    AddTokenIds(ids, &one);
    if (!scored.empty() && first) {
      one["logprobs"] = spec_.chat ? ChatLogprobs(scored, tokenizer_)
                                   : LegacyLogprobs(scored, scored_at, tokenizer_);
    }
    first = false;
    chunk["choices"] = json::array({std::move(one)});
    out += SseEvent(chunk);
  }
  for (const GeneratedToken& token : event.tokens) choice.characters += CountCharacters(token.text);
  if (event.finish_reason == FinishReason::kNone) return out;
  json one = {{"index", index}, {"logprobs", nullptr}, {"finish_reason", FinishOf(choice)}};
  one[spec_.chat ? "delta" : "text"] = spec_.chat ? json::object() : json("");
  if (first) AddTokenIds({}, &one);
  one["stop_reason"] = event.stop_match ? json(*event.stop_match) : json();
  chunk["choices"] = json::array({std::move(one)});
  if (open_choices_ > 0) return out + SseEvent(chunk);
  held_ = Dump(chunk);
  return out;
}

std::vector<json> Answer::BodiesOf(Choice* choice, const Event& event, const std::string& text) {
  const bool finishes = event.finish_reason != FinishReason::kNone;
  std::vector<json> bodies;
  if (!choice->read) {
    if (finishes && text.empty() && event.tokens.empty()) return bodies;
    json content = json::object();
    if (!text.empty() || !finishes) content["content"] = text;
    bodies.push_back(spec_.chat ? std::move(content) : json(text));
    return bodies;
  }
  const uint64_t held = choice->read->pieces.held_bytes();
  const std::vector<AnswerEvent> pieces = choice->read->pieces.Take(event);
  held_bytes_ += choice->read->pieces.held_bytes() - held;
  for (const AnswerEvent& piece : pieces) {
    if (piece.kind == AnswerEvent::Kind::kCallBegin) ++choice->read->streamed_calls;
    json delta = DeltaOf(piece, choice->read->streamed_calls - 1);
    if (!delta.is_null()) bodies.push_back(std::move(delta));
  }
  const bool shows_tokens = spec_.logprobs || spec_.return_token_ids || spec_.return_tokens;
  if (bodies.empty() && shows_tokens && !event.tokens.empty()) {
    bodies.push_back({{"content", ""}});  // its text waits
  }
  return bodies;
}

std::string Answer::ProgressEvent(uint32_t index, const Progress& progress) {
  json chunk = Envelope(true);
  json one = {{"index", index}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  one[spec_.chat ? "delta" : "text"] = spec_.chat ? json::object() : json("");
  chunk["choices"] = json::array({std::move(one)});
  chunk["prompt_progress"] = ProgressJson(progress);
  return SseEvent(chunk);
}

std::string Answer::EndEvents(size_t) {
  if (open_requests_ > 0) return "";
  json last = json::parse(held_.empty() ? R"({"choices":[]})" : held_, nullptr, false);
  std::string out;
  if (spec_.include_usage) {
    out = SseEvent(last);
    last = Envelope(true);
    last["choices"] = json::array();
    last["usage"] = Usage();
  }
  last["kvasir"] = FinalReceipt();
  last["timings"] = TimingsJson(timings_);
  if (!spec_.verbosely) return out + SseEvent(last) + "data: [DONE]\n\n";
  out += "data: " + Dump(last);
  out.back() = ',';
  out += "\"__verbose\":";
  Parts verbose = VerboseText();
  for (std::string part = verbose.Next(); !part.empty(); part = verbose.Next()) out += part;
  return out + "}\n\ndata: [DONE]\n\n";
}

std::string Answer::ErrorEvent(const Error& error) const {
  return "data: {\"choices\":[],\"error\":" + ErrorObject(error) + "}\n\n";
}

json Answer::Envelope(bool chunk) const {
  const char* object = !spec_.chat ? "text_completion"
                       : chunk     ? "chat.completion.chunk"
                                   : "chat.completion";
  json envelope = {{"id", id_},
                   {"object", object},
                   {"created", created_},
                   {"model", spec_.model},
                   {"system_fingerprint", spec_.fingerprint}};
  if (chunk && spec_.include_usage) envelope["usage"] = nullptr;
  if (spec_.of) envelope["session"] = {{"id", spec_.of->session}, {"index", spec_.of->index}};
  return envelope;
}

json Answer::FinalReceipt() const {
  json receipt = ReceiptJson(receipt_);
  if (spec_.of && spec_.of->dropped_messages) {
    receipt["dropped_messages"] = *spec_.of->dropped_messages;
  }
  return receipt;
}

void Answer::AddTokenIds(const std::vector<TokenId>& ids, json* choice) const {
  if (spec_.return_token_ids) (*choice)["token_ids"] = ids;
  if (spec_.return_tokens) (*choice)["tokens"] = ids;
}

json Answer::Usage() const {
  json usage = {{"prompt_tokens", receipt_.prompt_tokens},
                {"completion_tokens", completion_tokens_},
                {"total_tokens", receipt_.prompt_tokens + completion_tokens_},
                {"prompt_tokens_details", {{"cached_tokens", receipt_.cached_tokens()}}}};
  // Without calls and marks: the prompt has closed the thought, which has no tokens here.
  if (spec_.reading && (spec_.reading->think || !spec_.reading->calls)) {
    uint64_t tokens = 0;
    for (const Choice& choice : choices_) tokens += choice.read->pieces.reasoning_tokens();
    usage["completion_tokens_details"] = {{"reasoning_tokens", tokens}};
  }
  return usage;
}

Timings Answer::TimingsOfLast(size_t prompt, const Event& event) const {
  const std::span<const Choice> choices = std::span(choices_).subspan(prompt * spec_.n, spec_.n);
  uint32_t with_tokens = 0, longest = 0;
  for (const Choice& choice : choices) {
    with_tokens += choice.num_tokens > 0;
    longest = std::max(longest, choice.num_tokens);
  }
  return TimingsOf(event.receipt, event.completion_tokens, with_tokens, longest);
}

// Several prompts share one receipt: it has the sums of tokens, of preemptions and of saved time,
// the first miss, and the times of the prompt whose first token came first.
void Answer::AddReceipt(size_t prompt, const Event& event) {
  const Receipt& one = event.receipt;
  completion_tokens_ += event.completion_tokens;
  timings_.Add(TimingsOfLast(prompt, event));
  if (open_requests_ * spec_.n == choices_.size()) {
    receipt_ = one;
    return;
  }
  receipt_.prompt_tokens += one.prompt_tokens;
  receipt_.computed += one.computed;
  receipt_.reused_pool += one.reused_pool;
  receipt_.reused_partial += one.reused_partial;
  receipt_.reused_disk += one.reused_disk;
  receipt_.reused_remote += one.reused_remote;
  receipt_.recomputed += one.recomputed;
  if (!receipt_.miss) receipt_.miss = one.miss;
  receipt_.saved_ms += one.saved_ms;
  receipt_.preemptions += one.preemptions;
  if (one.ttft_ms < receipt_.ttft_ms) {  // with its parts
    receipt_.ttft_ms = one.ttft_ms;
    receipt_.queue_ms = one.queue_ms;
    receipt_.shared_ms = one.shared_ms;
    receipt_.cache_ms = one.cache_ms;
    receipt_.load_ms = one.load_ms;
    receipt_.compute_ms = one.compute_ms;
    receipt_.estimate_ms = one.estimate_ms;
  }
  receipt_.tpot_ms = std::max(receipt_.tpot_ms, one.tpot_ms);
}

}  // namespace kvasir
