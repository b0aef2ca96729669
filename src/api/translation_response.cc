#include "api/translation_response.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/digest.h"
#include "http/json_body.h"
#include "observe/receipt_json.h"
#include "text/sentences.h"

namespace kvasir {

using nlohmann::json;

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

// The translation of a text from the given hypothesis of each sentence, or its last one. A piece
// for each sentence.
Parts TranslationAnswer::TextOf(const TextParts& parts, size_t hypothesis) const {
  std::string_view before;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::string out;
    if (i > 0) out = Sentences::Joint(before, parts[i].break_before);
    before = {};
    if (parts[i].request) {
      const std::vector<size_t> best = Best(*parts[i].request);
      if (!best.empty()) before = choices_[best[std::min(hypothesis, best.size() - 1)]].text;
    }
    out += before;
    co_yield out;
  }
}

// The same as a JSON string.
Parts TranslationAnswer::QuotedText(const TextParts& parts, size_t hypothesis) const {
  std::string out = "\"";
  Parts text = TextOf(parts, hypothesis);
  for (std::string part = text.Next(); !part.empty(); part = text.Next()) {
    for (std::string_view rest = part; !rest.empty();) {
      AppendEscaped(&rest, &out);
      if (out.size() >= kPartBytes) co_yield out;
    }
  }
  out += '"';
  co_yield out;
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

// What is known of one request, except its texts and tokens.
json TranslationAnswer::EntryOf(size_t request) const {
  const std::vector<size_t> best = Best(request);
  json entry = {{"finish_reason", "stop"}, {"kvasir", ReceiptJson(receipts_[request])}};
  if (best.empty()) return entry;
  const Choice& first = choices_[best.front()];
  entry["score"] = ScoreOf(best.front());
  entry["finish_reason"] = ToString(first.finish);
  if (first.stop_match) entry["stop_reason"] = *first.stop_match;
  return entry;
}

// What is known of a text, except its texts and tokens; in a stream, of its sentences too.
json TranslationAnswer::EntryOf(const TextParts& parts) const {
  if (!spec_.translation->splits_sentences) {
    if (parts.front().request) return EntryOf(*parts.front().request);
    return {{"finish_reason", "stop"}};
  }
  json entry;
  AddSums(parts, &entry);
  if (!spec_.stream) return entry;
  json& sentences = entry["sentences"] = json::array();
  for (const auto& part : parts) {
    if (part.request) sentences.push_back(EntryOf(*part.request));
  }
  return entry;
}

Parts TranslationAnswer::Hypotheses(size_t request) const {
  const std::vector<size_t> best = Best(request);
  std::string out;
  for (const size_t choice : best) {
    if (choice != best.front()) out += ',';
    json tokens = spec_.translation->prompt;
    for (const TokenId id : choices_[choice].ids) tokens.push_back(id);
    const json hypothesis = {
        {"text", choices_[choice].text}, {"tokens", std::move(tokens)}, {"score", ScoreOf(choice)}};
    out += Dump(hypothesis);
    co_yield out;
  }
}

Parts TranslationAnswer::SentenceList(const TextParts& parts) const {
  bool first = true;
  for (const auto& part : parts) {
    if (!part.request) continue;
    std::string out = std::exchange(first, false) ? "" : ",";
    const TextParts alone = {part};
    Parts entry = EntryText(EntryOf(*part.request), alone, "hypotheses", Hypotheses(*part.request));
    for (std::string piece = entry.Next(); !piece.empty(); piece = entry.Next()) {
      out += piece;
      co_yield out;
    }
  }
}

// An entry with a list, if it has a name, and its text.
Parts TranslationAnswer::EntryText(json entry, const TextParts& parts, std::string_view list_name,
                                   Parts list) const {
  std::string out = R"({"finish_reason":)" + Dump(entry.at("finish_reason"));
  entry.erase("finish_reason");
  if (!list_name.empty()) {
    out += fmt::format(",\"{}\":[", list_name);
    for (std::string piece = list.Next(); !piece.empty(); piece = list.Next()) {
      out += piece;
      if (out.size() >= kPartBytes) co_yield out;
    }
    out += ']';
  }
  for (const auto& [name, value] : entry.items()) {
    out += fmt::format(",\"{}\":{}", name, Dump(value));
  }
  out += R"(,"text":)";
  Parts text = QuotedText(parts, 0);
  for (std::string piece = text.Next(); !piece.empty(); piece = text.Next()) {
    out += piece;
    if (out.size() >= kPartBytes) co_yield out;
  }
  out += '}';
  co_yield out;
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
    Parts list;
    std::string_view list_name;
    if (spec_.translation->splits_sentences) {
      list = SentenceList(texts[i]);
      list_name = "sentences";
    } else if (const auto request = texts[i].front().request) {
      list = Hypotheses(*request);
      list_name = "hypotheses";
    }
    Parts text = EntryText(std::move(entry), texts[i], list_name, std::move(list));
    for (std::string piece = text.Next(); !piece.empty(); piece = text.Next()) {
      out += piece;
      if (out.size() >= kPartBytes) co_yield out;
    }
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
Parts TranslationAnswer::Alternatives(const TextParts& parts) const {
  const auto digest_of = [&](size_t hypothesis) {
    Sha256 digest;
    Parts text = TextOf(parts, hypothesis);
    for (std::string part = text.Next(); !part.empty(); part = text.Next()) digest.Update(part);
    return digest.Finish();
  };
  std::vector<Digest> seen = {digest_of(0)};
  std::string out = "[";
  for (uint32_t i = 1; i <= spec_.translation->libre->alternatives; ++i) {
    const Digest digest = digest_of(i);
    if (std::ranges::find(seen, digest) != seen.end()) continue;
    if (seen.size() > 1) out += ',';
    seen.push_back(digest);
    Parts text = QuotedText(parts, i);
    for (std::string part = text.Next(); !part.empty(); part = text.Next()) {
      out += part;
      if (out.size() >= kPartBytes) co_yield out;
    }
  }
  out += ']';
  co_yield out;
}

// One of the body's two lists; where the request has one text, that list's only entry.
Parts TranslationAnswer::LibreList(bool of_alternatives) const {
  const auto& texts = spec_.translation->texts;
  const bool has_list = spec_.translation->libre->has_list;
  std::string out = has_list ? "[" : "";
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) out += ',';
    Parts one = of_alternatives ? Alternatives(texts[i]) : QuotedText(texts[i], 0);
    for (std::string part = one.Next(); !part.empty(); part = one.Next()) {
      out += part;
      if (out.size() >= kPartBytes) co_yield out;
    }
  }
  if (has_list) out += ']';
  co_yield out;
}

Parts TranslationAnswer::LibreBody() const {
  std::string out = R"({"translatedText":)";
  for (const bool of_alternatives : {false, true}) {
    if (of_alternatives && spec_.translation->libre->alternatives == 0) continue;
    if (of_alternatives) out += R"(,"alternatives":)";
    Parts list = LibreList(of_alternatives);
    for (std::string part = list.Next(); !part.empty(); part = list.Next()) {
      out += part;
      if (out.size() >= kPartBytes) co_yield out;
    }
  }
  out += '}';
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
