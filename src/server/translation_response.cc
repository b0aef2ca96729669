#include "server/translation_response.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "observe/receipt_json.h"
#include "server/json_body.h"
#include "text/sentences.h"

namespace kvasir {

using nlohmann::json;

namespace {

std::string SseEvent(const json& object) { return "data: " + Dump(object) + "\n\n"; }

}  // namespace

TranslationAnswer::TranslationAnswer(AnswerSpec spec, size_t num_prompts, std::string id,
                                     const Tokenizer* tokenizer)
    : Answer(std::move(spec), num_prompts, std::move(id), 0, tokenizer),
      receipts_(num_prompts),
      scored_(choices_.size()) {
  held_bytes_ += sizeof(*this) - sizeof(Answer) + receipts_.size() * sizeof(Receipt) +
                 scored_.size() * sizeof(Scored);
  for (const TextParts& parts : spec_.translation->texts) {
    held_bytes_ += sizeof(parts) + sizeof(Flow);
    for (const auto& part : parts) {
      held_bytes_ += sizeof(part) + part.break_before.capacity() + sizeof(Waiting);
    }
  }
  if (!spec_.stream) return;
  const auto& texts = spec_.translation->texts;
  flows_.resize(texts.size());
  waiting_.resize(num_prompts);
  for (size_t i = 0; i < texts.size(); ++i) {
    for (const auto& part : texts[i]) {
      if (part.request) waiting_[*part.request].text = i;
    }
  }
}

void TranslationAnswer::AddReceipt(size_t prompt, const Event& event) {
  Answer::AddReceipt(prompt, event);
  receipts_[prompt] = event.receipt;
}

void TranslationAnswer::See(uint32_t index, const Event& event) {
  for (const GeneratedToken& token : event.tokens) {
    scored_[index].sum += static_cast<double>(token.logprob);
  }
  if (event.score) scored_[index].score = event.score;
}

// The start token does not count; the language does.
double TranslationAnswer::LengthOf(size_t choice) const {
  return static_cast<double>(spec_.translation->prompt.size() - 1 + choices_[choice].num_tokens);
}

double TranslationAnswer::ScoreOf(size_t choice) const {
  if (scored_[choice].score) return double{*scored_[choice].score};
  return scored_[choice].sum /
         std::pow(LengthOf(choice), double{spec_.translation->length_penalty});
}

double TranslationAnswer::SumOf(size_t choice) const {
  if (!scored_[choice].score) return scored_[choice].sum;
  return double{*scored_[choice].score} *
         std::pow(LengthOf(choice), double{spec_.translation->length_penalty});
}

// The choices of a request, the best first. A search may have found fewer than were asked for.
std::vector<size_t> TranslationAnswer::Best(size_t request) const {
  std::vector<size_t> best;
  for (size_t choice = request * spec_.n; choice < (request + 1) * spec_.n; ++choice) {
    if (!spec_.translation->is_search || scored_[choice].score) best.push_back(choice);
  }
  if (!spec_.translation->is_search) {
    std::ranges::stable_sort(best, std::ranges::greater(),
                             [this](size_t choice) { return ScoreOf(choice); });
  }
  return best;
}

// The translation of a text from the given hypothesis of each sentence, or its last one.
std::string TranslationAnswer::TextOf(const TextParts& parts, size_t hypothesis) const {
  std::string joined;
  std::string_view before;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) joined += Sentences::Joint(before, parts[i].break_before);
    before = {};
    if (!parts[i].request) continue;
    const std::vector<size_t> best = Best(*parts[i].request);
    if (best.empty()) continue;
    before = choices_[best[std::min(hypothesis, best.size() - 1)]].text;
    joined += before;
  }
  return joined;
}

// Score and finish_reason of a text: those of one answer that has the tokens of all its sentences.
void TranslationAnswer::AddSums(const TextParts& parts, json* entry) const {
  double sum = 0, length = 0;
  FinishReason finish = FinishReason::kStop;
  for (const auto& part : parts) {
    if (!part.request) continue;
    const std::vector<size_t> best = Best(*part.request);
    if (best.empty()) continue;
    sum += SumOf(best.front());
    length += LengthOf(best.front());
    if (choices_[best.front()].finish == FinishReason::kLength) finish = FinishReason::kLength;
  }
  (*entry)["finish_reason"] = ToString(finish);
  if (length == 0) return;  // of an empty text
  (*entry)["score"] = sum / std::pow(length, double{spec_.translation->length_penalty});
}

// What is known of one request: all of an entry but its index.
json TranslationAnswer::EntryOf(size_t request) const {
  const std::vector<size_t> best = Best(request);
  json entry = {{"finish_reason", "stop"}, {"kvasir", ReceiptJson(receipts_[request])}};
  if (!spec_.stream) entry["text"] = best.empty() ? "" : choices_[best.front()].text;
  if (!best.empty()) {
    entry["score"] = ScoreOf(best.front());
    entry["finish_reason"] = ToString(choices_[best.front()].finish);
  }
  if (spec_.stream) return entry;
  json& hypotheses = entry["hypotheses"] = json::array();
  for (const size_t choice : best) {
    json tokens = spec_.translation->prompt;
    for (const TokenId id : choices_[choice].ids) tokens.push_back(id);
    hypotheses.push_back({{"text", choices_[choice].text},
                          {"tokens", std::move(tokens)},
                          {"score", ScoreOf(choice)}});
  }
  return entry;
}

json TranslationAnswer::EntryOf(const TextParts& parts) const {
  json entry;
  if (!spec_.translation->splits_sentences) {
    if (parts.front().request) return EntryOf(*parts.front().request);
    entry = {{"finish_reason", "stop"}};
  } else {
    AddSums(parts, &entry);
    json& sentences = entry["sentences"] = json::array();
    for (const auto& part : parts) {
      if (part.request) sentences.push_back(EntryOf(*part.request));
    }
  }
  if (!spec_.stream) entry["text"] = TextOf(parts, 0);
  return entry;
}

Parts TranslationAnswer::Body() const {
  return spec_.translation->libre ? LibreBody() : ListBody();
}

Parts TranslationAnswer::ListBody() const {
  std::string out =
      fmt::format(R"({{"object":"list","model":{},"data":[)", Dump(json(spec_.model)));
  const auto& texts = spec_.translation->texts;
  for (size_t i = 0; i < texts.size(); ++i) {
    json entry = EntryOf(texts[i]);
    entry["index"] = i;
    if (i > 0) out += ',';
    out += Dump(entry);
    if (out.size() >= kPartBytes) co_yield out;
  }
  out += "]," + Usage() + "}";
  co_yield out;
}

std::string TranslationAnswer::Usage() const {
  uint64_t source_tokens = 0;
  for (const Receipt& receipt : receipts_) source_tokens += receipt.source_tokens;
  return fmt::format(R"("usage":{{"source_tokens":{},"target_tokens":{}}})", source_tokens,
                     completion_tokens());
}

// Other translations of a text, each once.
json TranslationAnswer::Alternatives(const TextParts& parts) const {
  std::vector<std::string> texts = {TextOf(parts, 0)};
  for (uint32_t i = 1; i <= spec_.translation->libre->alternatives; ++i) {
    std::string text = TextOf(parts, i);
    if (std::ranges::find(texts, text) == texts.end()) texts.push_back(std::move(text));
  }
  texts.erase(texts.begin());
  return texts;
}

Parts TranslationAnswer::LibreBody() const {
  const auto& texts = spec_.translation->texts;
  const auto& libre = *spec_.translation->libre;
  const auto add = [&](const auto& one, std::string* out) {
    *out += libre.has_list ? "[" : "";
    for (size_t i = 0; i < texts.size(); ++i) {
      if (i > 0) *out += ',';
      *out += Dump(one(texts[i]));
    }
    *out += libre.has_list ? "]" : "";
  };
  std::string out = R"({"translatedText":)";
  add([this](const TextParts& parts) { return json(TextOf(parts, 0)); }, &out);
  co_yield out;
  if (libre.alternatives > 0) {
    out += R"(,"alternatives":)";
    add([this](const TextParts& parts) { return Alternatives(parts); }, &out);
  }
  out += "}";
  co_yield out;
}

// --- streams

std::string TranslationAnswer::EventOf(json entry) const {
  json event = {{"object", "list"}, {"model", spec_.model}, {"data", json::array()}};
  event["data"].push_back(std::move(entry));
  return SseEvent(event);
}

// What can be sent of a text now: the sentences stand in their order.
std::string TranslationAnswer::Flowing(size_t text) {
  constexpr size_t kCharacterBytes = 4;
  const TextParts& parts = spec_.translation->texts[text];
  Flow& flow = flows_[text];
  std::string out;
  while (flow.part < parts.size()) {
    const auto& part = parts[flow.part];
    if (flow.part > 0 && !flow.joined) {
      out += Sentences::Joint(flow.before, part.break_before);
      flow.before.clear();
      flow.joined = true;
    }
    if (part.request) {
      Waiting& waiting = waiting_[*part.request];
      held_bytes_ -= waiting.unsent.size();
      out += waiting.unsent;
      flow.before += std::exchange(waiting.unsent, {});
      if (flow.before.size() > kCharacterBytes) {
        flow.before.erase(0, flow.before.size() - kCharacterBytes);
      }
      if (!waiting.finished) break;
    }
    ++flow.part;
    flow.joined = false;
  }
  if (out.empty()) return out;
  return EventOf({{"index", text}, {"text", std::move(out)}, {"finish_reason", nullptr}});
}

std::string TranslationAnswer::StreamEvent(uint32_t index, const Event& event) {
  Waiting& waiting = waiting_[index];
  waiting.unsent += event.text;
  held_bytes_ += event.text.size();
  if (event.finish_reason != FinishReason::kNone) waiting.finished = true;
  return Flowing(waiting.text);
}

std::string TranslationAnswer::EndEvents(size_t prompt) {
  waiting_[prompt].ended = true;
  const size_t text = waiting_[prompt].text;
  const TextParts& parts = spec_.translation->texts[text];
  std::string out;
  if (std::ranges::all_of(parts, [&](const auto& part) {
        return !part.request || waiting_[*part.request].ended;
      })) {
    json entry = EntryOf(parts);
    entry["index"] = text;
    entry["text"] = "";
    out = EventOf(std::move(entry));
  }
  return done() ? out + EndOfStream() : out;
}

// The ends of empty texts, and of the stream.
std::string TranslationAnswer::EndOfStream() const {
  const auto& texts = spec_.translation->texts;
  std::string out;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (std::ranges::any_of(texts[i], [](const auto& part) { return part.request.has_value(); })) {
      continue;
    }
    out += EventOf({{"index", i}, {"text", ""}, {"finish_reason", "stop"}});
  }
  return out +
         fmt::format("data: {{\"object\":\"list\",\"model\":{},\"data\":[],{}}}\n\n",
                     Dump(json(spec_.model)), Usage()) +
         "data: [DONE]\n\n";
}

std::string TranslationAnswer::ErrorEvent(const Error& error) const {
  return "data: {\"data\":[],\"error\":" + ErrorObject(error) + "}\n\n";
}

}  // namespace kvasir
