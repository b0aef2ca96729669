#include "api/translation_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/digest.h"
#include "http/errors.h"
#include "http/json_body.h"
#include "observe/receipt_json.h"
#include "text/sentences.h"

namespace kvasir {

using nlohmann::json;

void TranslationWriter::Begin(const Answer& answer) {
  scored_.resize(answer.choices().size());
  held_bytes_ = sizeof(*this) + scored_.size() * sizeof(Scored);
  for (const Text& sentences : spec_.texts) {
    held_bytes_ += sizeof(sentences) + sizeof(Flow);
    for (const auto& sentence : sentences) {
      held_bytes_ += sizeof(sentence) + sentence.break_before.capacity() + sizeof(Waiting);
    }
  }
  if (!answer.spec().stream) return;
  flows_.resize(spec_.texts.size());
  waiting_.resize(answer.num_prompts());
  for (size_t i = 0; i < spec_.texts.size(); ++i) {
    for (const auto& sentence : spec_.texts[i]) {
      if (sentence.request) waiting_[*sentence.request].text = i;
    }
  }
}

void TranslationWriter::See(const Answer&, const Answer::Step& step, const Event& event) {
  for (const GeneratedToken& token : event.tokens) {
    scored_[step.choice].sum += static_cast<double>(token.logprob);
  }
  if (event.score) scored_[step.choice].score = event.score;
}

// Counts the tokens of an answer: the start token does not count, the language does.
double TranslationWriter::LengthOf(const Answer& answer, size_t choice) const {
  return static_cast<double>(spec_.prompt.size() - 1 + answer.choices()[choice].num_tokens);
}

double TranslationWriter::ScoreOf(const Answer& answer, size_t choice) const {
  if (scored_[choice].score) return double{*scored_[choice].score};
  return scored_[choice].sum / std::pow(LengthOf(answer, choice), double{spec_.length_penalty});
}

double TranslationWriter::SumOf(const Answer& answer, size_t choice) const {
  if (!scored_[choice].score) return scored_[choice].sum;
  return double{*scored_[choice].score} *
         std::pow(LengthOf(answer, choice), double{spec_.length_penalty});
}

// Returns the choices of a request, the best first. A search may have found fewer than were asked
// for.
std::vector<size_t> TranslationWriter::Best(const Answer& answer, size_t request) const {
  std::vector<size_t> best;
  for (size_t choice = request * answer.spec().n; choice < (request + 1) * answer.spec().n;
       ++choice) {
    if (!spec_.is_search || scored_[choice].score) best.push_back(choice);
  }
  if (!spec_.is_search) {
    std::ranges::stable_sort(best, std::ranges::greater(),
                             [&](size_t choice) { return ScoreOf(answer, choice); });
  }
  return best;
}

// Yields the translation of a text from the given hypothesis of each sentence, or its last one. A
// piece for each sentence.
Parts TranslationWriter::TextOf(const Answer& answer, const Text& sentences,
                                size_t hypothesis) const {
  std::string_view before;
  for (size_t i = 0; i < sentences.size(); ++i) {
    if (i > 0) co_yield Sentences::Joint(before, sentences[i].break_before);
    before = {};
    if (sentences[i].request) {
      const std::vector<size_t> best = Best(answer, *sentences[i].request);
      if (!best.empty())
        before = answer.choices()[best[std::min(hypothesis, best.size() - 1)]].text;
    }
    co_yield before;
  }
}

// Yields the same as a JSON string.
Parts TranslationWriter::QuotedText(const Answer& answer, const Text& sentences,
                                    size_t hypothesis) const {
  return QuotedParts(TextOf(answer, sentences, hypothesis));
}

// Adds score and finish_reason of a text: those of one answer that has the tokens of all its
// sentences.
void TranslationWriter::AddSums(const Answer& answer, const Text& sentences, json* entry) const {
  double sum = 0, length = 0;
  FinishReason finish = FinishReason::kStop;
  for (const auto& sentence : sentences) {
    if (!sentence.request) continue;
    const std::vector<size_t> best = Best(answer, *sentence.request);
    if (best.empty()) continue;
    sum += SumOf(answer, best.front());
    length += LengthOf(answer, best.front());
    if (answer.choices()[best.front()].finish == FinishReason::kLength)
      finish = FinishReason::kLength;
  }
  (*entry)["finish_reason"] = ToString(finish);
  if (length == 0) return;  // of an empty text
  (*entry)["score"] = sum / std::pow(length, double{spec_.length_penalty});
}

// Returns what is known of one request, except its texts and tokens.
json TranslationWriter::EntryOf(const Answer& answer, size_t request) const {
  const std::vector<size_t> best = Best(answer, request);
  json entry = {{"finish_reason", "stop"}, {"kvasir", ReceiptJson(answer.ReceiptOf(request))}};
  if (best.empty()) return entry;
  const Answer::Choice& first = answer.choices()[best.front()];
  entry["score"] = ScoreOf(answer, best.front());
  entry["finish_reason"] = ToString(first.finish);
  if (first.stop_match) entry["stop_reason"] = *first.stop_match;
  return entry;
}

// Returns what is known of a text, except its texts and tokens; in a stream, of its sentences too.
json TranslationWriter::EntryOf(const Answer& answer, const Text& sentences) const {
  if (!spec_.splits_sentences) {
    if (sentences.front().request) return EntryOf(answer, *sentences.front().request);
    return {{"finish_reason", "stop"}};
  }
  json entry;
  AddSums(answer, sentences, &entry);
  if (!answer.spec().stream) return entry;
  json& list = entry["sentences"] = json::array();
  for (const auto& sentence : sentences) {
    if (sentence.request) list.push_back(EntryOf(answer, *sentence.request));
  }
  return entry;
}

Parts TranslationWriter::Hypotheses(const Answer& answer, size_t request) const {
  const std::vector<size_t> best = Best(answer, request);
  co_yield ListParts(best, [&](size_t choice) {
    json tokens = spec_.prompt;
    for (const TokenId id : answer.choices()[choice].ids) tokens.push_back(id);
    const json hypothesis = {{"text", answer.choices()[choice].text},
                             {"tokens", std::move(tokens)},
                             {"score", ScoreOf(answer, choice)}};
    return Dump(hypothesis);
  });
}

Parts TranslationWriter::SentenceList(const Answer& answer, const Text& sentences) const {
  bool is_first = true;
  co_yield "[";
  for (const auto& sentence : sentences) {
    if (!sentence.request) continue;
    if (!std::exchange(is_first, false)) co_yield ",";
    const Text alone = {sentence};
    co_yield EntryText(answer, EntryOf(answer, *sentence.request), alone, "hypotheses",
                       Hypotheses(answer, *sentence.request));
  }
  co_yield "]";
}

// Yields an entry with a list, if it has a name, and its text.
Parts TranslationWriter::EntryText(const Answer& answer, json entry, const Text& sentences,
                                   std::string_view list_name, Parts list) const {
  co_yield R"({"finish_reason":)" + Dump(entry.at("finish_reason"));
  entry.erase("finish_reason");
  if (!list_name.empty()) {
    co_yield fmt::format(",\"{}\":", list_name);
    co_yield std::move(list);
  }
  std::string others;
  for (const auto& [name, value] : entry.items()) {
    others += fmt::format(",\"{}\":{}", name, Dump(value));
  }
  co_yield others + R"(,"text":)";
  co_yield QuotedText(answer, sentences, 0);
  co_yield "}";
}

Parts TranslationWriter::Body(const Answer& answer) const {
  return spec_.libre ? LibreBody(answer) : ListBody(answer);
}

Parts TranslationWriter::ListBody(const Answer& answer) const {
  co_yield fmt::format(R"({{"object":"list","model":{},"data":[)", Quoted(answer.spec().model));
  const auto& texts = spec_.texts;
  for (size_t i = 0; i < texts.size(); ++i) {
    json entry = EntryOf(answer, texts[i]);
    entry["index"] = i;
    if (i > 0) co_yield ",";
    Parts list;
    std::string_view list_name;
    if (spec_.splits_sentences) {
      list = SentenceList(answer, texts[i]);
      list_name = "sentences";
    } else if (const auto request = texts[i].front().request) {
      list = Hypotheses(answer, *request);
      list_name = "hypotheses";
    }
    co_yield EntryText(answer, std::move(entry), texts[i], list_name, std::move(list));
  }
  co_yield "]," + Usage(answer) + "}";
}

std::string TranslationWriter::Usage(const Answer& answer) {
  uint64_t source_tokens = 0;
  for (size_t i = 0; i < answer.num_prompts(); ++i) {
    source_tokens += answer.ReceiptOf(i).source_tokens;
  }
  return fmt::format(R"("usage":{{"source_tokens":{},"target_tokens":{}}})", source_tokens,
                     answer.completion_tokens());
}

// Yields other translations of a text, each once.
Parts TranslationWriter::Alternatives(const Answer& answer, const Text& sentences) const {
  const auto digest_of = [&](size_t hypothesis) {
    Sha256 digest;
    Parts text = TextOf(answer, sentences, hypothesis);
    for (std::string piece = text.Next(); !piece.empty(); piece = text.Next()) digest.Update(piece);
    return digest.Finish();
  };
  std::vector<Digest> seen = {digest_of(0)};
  co_yield "[";
  for (uint32_t i = 1; i <= spec_.libre->alternatives; ++i) {
    const Digest digest = digest_of(i);
    if (std::ranges::find(seen, digest) != seen.end()) continue;
    if (seen.size() > 1) co_yield ",";
    seen.push_back(digest);
    co_yield QuotedText(answer, sentences, i);
  }
  co_yield "]";
}

// Yields one of the body's two lists; where the request has one text, that list's only entry.
Parts TranslationWriter::LibreList(const Answer& answer, bool of_alternatives) const {
  const auto& texts = spec_.texts;
  const bool has_list = spec_.libre->has_list;
  if (has_list) co_yield "[";
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) co_yield ",";
    if (of_alternatives) {
      co_yield Alternatives(answer, texts[i]);
    } else {
      co_yield QuotedText(answer, texts[i], 0);
    }
  }
  if (has_list) co_yield "]";
}

Parts TranslationWriter::LibreBody(const Answer& answer) const {
  co_yield R"({"translatedText":)";
  co_yield LibreList(answer, false);
  if (spec_.libre->alternatives > 0) {
    co_yield R"(,"alternatives":)";
    co_yield LibreList(answer, true);
  }
  co_yield "}";
}

// --- streams

std::string TranslationWriter::EventOf(const Answer& answer, json entry) {
  json event = {{"object", "list"}, {"model", answer.spec().model}, {"data", json::array()}};
  event["data"].push_back(std::move(entry));
  return SseEvent(event);
}

// Returns what can be sent of a text now: the sentences stand in their order.
std::string TranslationWriter::Flowing(const Answer& answer, size_t text) {
  constexpr size_t kCharacterBytes = 4;
  const Text& sentences = spec_.texts[text];
  Flow& flow = flows_[text];
  std::string out;
  while (flow.sentence < sentences.size()) {
    const auto& sentence = sentences[flow.sentence];
    if (flow.sentence > 0 && !flow.joined) {
      out += Sentences::Joint(flow.before, sentence.break_before);
      flow.before.clear();
      flow.joined = true;
    }
    if (sentence.request) {
      Waiting& waiting = waiting_[*sentence.request];
      held_bytes_ -= waiting.unsent.size();
      out += waiting.unsent;
      flow.before += std::exchange(waiting.unsent, {});
      if (flow.before.size() > kCharacterBytes) {
        flow.before.erase(0, flow.before.size() - kCharacterBytes);
      }
      if (!waiting.finished) break;
    }
    ++flow.sentence;
    flow.joined = false;
  }
  if (out.empty()) return out;
  return EventOf(answer, {{"index", text}, {"text", std::move(out)}, {"finish_reason", nullptr}});
}

std::string TranslationWriter::StepEvents(const Answer& answer, const Answer::Step& step,
                                          const Event& event) {
  Waiting& waiting = waiting_[step.choice];
  waiting.unsent += event.text;
  held_bytes_ += event.text.size();
  if (event.finish_reason != FinishReason::kNone) waiting.finished = true;
  return Flowing(answer, waiting.text);
}

std::string TranslationWriter::EndEvents(const Answer& answer, size_t prompt) {
  waiting_[prompt].ended = true;
  const size_t text = waiting_[prompt].text;
  const Text& sentences = spec_.texts[text];
  std::string out;
  if (std::ranges::all_of(sentences, [&](const auto& sentence) {
        return !sentence.request || waiting_[*sentence.request].ended;
      })) {
    json entry = EntryOf(answer, sentences);
    entry["index"] = text;
    entry["text"] = "";
    out = EventOf(answer, std::move(entry));
  }
  return answer.open_prompts() == 0 ? out + EndOfStream(answer) : out;
}

// Returns the ends of empty texts, and of the stream.
std::string TranslationWriter::EndOfStream(const Answer& answer) const {
  const auto& texts = spec_.texts;
  std::string out;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (std::ranges::any_of(texts[i],
                            [](const auto& sentence) { return sentence.request.has_value(); })) {
      continue;
    }
    out += EventOf(answer, {{"index", i}, {"text", ""}, {"finish_reason", "stop"}});
  }
  return out +
         fmt::format("data: {{\"object\":\"list\",\"model\":{},\"data\":[],{}}}\n\n",
                     Quoted(answer.spec().model), Usage(answer)) +
         "data: [DONE]\n\n";
}

std::string TranslationWriter::ErrorEvent(const Error& error) const {
  return "data: {\"data\":[],\"error\":" + ErrorObject(error) + "}\n\n";
}

}  // namespace kvasir
