#include "eval/span_quality.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/result.h"
#include "eval/measure.h"

namespace kvasir::eval {
namespace {

constexpr uint32_t kSpanAnswerTokens = 64;

// A probe as ids: its prompt, the tokens of its notes, and the expected answer.
struct NotedPrompt {
  const Probe* probe;
  std::vector<TokenId> prompt, answer;
  std::vector<PromptSpan> spans;
  bool exact_is_right = false;
  std::vector<float> exact_rows;  // [answer tokens][vocab]
};

// Cuts tokens [begin, end) into spans of about one size, at ends of sentences.
std::vector<PromptSpan> CutNotes(const Tokenizer& tokenizer, std::span<const TokenId> ids,
                                 uint32_t begin, uint32_t end) {
  std::vector<uint32_t> ends;  // of sentences
  for (uint32_t i = begin; i < end; ++i) {
    const std::string text = tokenizer.Decode(ids.subspan(i, 1), SpecialTokens::kShow);
    if (!text.empty() && std::string_view(".!?\n").find(text.back()) != std::string_view::npos) {
      ends.push_back(i + 1);
    }
  }
  std::vector<PromptSpan> spans;
  for (uint32_t k = 1; k <= kNoteSpans; ++k) {
    const uint32_t first = spans.empty() ? begin : spans.back().end;
    uint32_t last = begin + (end - begin) * k / kNoteSpans;
    const auto away = [last](uint32_t place) { return place > last ? place - last : last - place; };
    const auto nearest = std::ranges::min_element(ends, {}, away);
    if (k < kNoteSpans && nearest != ends.end() && *nearest > first) last = *nearest;
    spans.push_back({first, k < kNoteSpans ? last : end});
  }
  return spans;
}

// Finds the tokens of the longest message before the last one: those in which the prompt differs
// from one without its text.
Result<NotedPrompt> NotedPromptOf(const Engine& engine, const Probe& probe) {
  NotedPrompt noted{.probe = &probe};
  KV_ASSIGN(noted.prompt, PromptOf(engine, probe));
  KV_ASSIGN(noted.answer,
            engine.tokenizer()->Encode(probe.answer.empty() ? probe.expect : probe.answer,
                                       {.add_special = false, .parse_special = false}));
  Probe without = probe;
  if (without.messages.size() < 2) return noted;
  std::ranges::max_element(without.messages.begin(), without.messages.end() - 1, {},
                           [](const ChatMessage& one) { return one.content.size(); })
      ->content = "";
  KV_ASSIGN(const std::vector<TokenId> other, PromptOf(engine, without));
  const auto begin = std::ranges::mismatch(noted.prompt, other).in1 - noted.prompt.begin();
  const size_t most = std::min(noted.prompt.size(), other.size()) - static_cast<size_t>(begin);
  size_t same = 0;
  while (same < most &&
         noted.prompt[noted.prompt.size() - 1 - same] == other[other.size() - 1 - same]) {
    ++same;
  }
  noted.spans = CutNotes(*engine.tokenizer(), noted.prompt, static_cast<uint32_t>(begin),
                         static_cast<uint32_t>(noted.prompt.size() - same));
  return noted;
}

bool AreLongEnough(std::span<const PromptSpan> spans) {
  return !spans.empty() && std::ranges::all_of(spans, [](const PromptSpan& span) {
    return span.end >= span.begin + kMinSpanTokens;
  });
}

// Returns the logits of the expected answer's tokens. What an earlier request has computed of spans
// is used; without parts that are read elsewhere the rows may be in the cache too, and are computed
// again.
Result<std::vector<float>> AnswerRows(Engine& engine, const NotedPrompt& noted,
                                      const std::optional<PromptSpans>& spans, Reuse reuse) {
  const size_t vocab = engine.card().vocab_size;
  std::vector<float> rows(noted.answer.size() * vocab);
  GenerateRequest request;
  request.prompt = noted.prompt;
  request.prompt.insert(request.prompt.end(), noted.answer.begin(), noted.answer.end());
  request.prompt.pop_back();
  request.spans = spans;
  request.max_tokens = 0;
  request.reuse = reuse;
  size_t told = 0;
  request.logits_from = static_cast<uint32_t>(noted.prompt.size() - 1);
  request.on_logits = [&](uint32_t, uint32_t position, std::span<const float> row) {
    const size_t index = position - (noted.prompt.size() - 1);
    if (index >= noted.answer.size()) return;
    std::ranges::copy(row, rows.begin() + static_cast<std::ptrdiff_t>(index * vocab));
    ++told;
  };
  KV_TRY(Generate(engine, std::move(request)));
  if (told == noted.answer.size()) return rows;
  KV_CHECK(reuse != Reuse::kNothing);
  return AnswerRows(engine, noted, spans, Reuse::kNothing);
}

Result<bool> IsRight(Engine& engine, const NotedPrompt& noted,
                     const std::optional<PromptSpans>& spans) {
  GenerateRequest request;
  request.prompt = noted.prompt;
  request.spans = spans;
  request.sampling.temperature = 0;
  request.max_tokens = kSpanAnswerTokens;
  KV_ASSIGN(const Generation answer, Generate(engine, std::move(request)));
  return HasWords(answer.text, noted.probe->expect);
}

}  // namespace

Result<std::vector<SpanQuality>> MeasureSpans(Engine& engine, std::span<const Probe> probes,
                                              std::span<const uint32_t> seams,
                                              const std::function<void(const std::string&)>& say) {
  std::vector<NotedPrompt> all;
  for (const Probe& probe : probes) {
    KV_ASSIGN(NotedPrompt noted, NotedPromptOf(engine, probe));
    const size_t longest = noted.prompt.size() + std::max<size_t>(noted.answer.size(), 1);
    if (!AreLongEnough(noted.spans) || longest > engine.card().ctx_size) continue;
    all.push_back(std::move(noted));
  }
  if (all.empty()) {
    return FailField(Code::kInvalidArgument, "spans",
                     "no probe has notes of {} spans of {} tokens; give --recall FILE with others",
                     kNoteSpans, kMinSpanTokens);
  }
  size_t num_exact = 0;
  for (NotedPrompt& noted : all) {
    say(fmt::format("exact: {} of {} probes", num_exact++, all.size()));
    KV_ASSIGN(noted.exact_is_right, IsRight(engine, noted, std::nullopt));
    KV_ASSIGN(noted.exact_rows, AnswerRows(engine, noted, std::nullopt, Reuse::kNothing));
  }
  const size_t vocab = engine.card().vocab_size;
  std::vector<SpanQuality> measured;
  const std::optional<uint32_t> heads[] = {std::nullopt, 1};
  for (const std::optional<uint32_t> head : heads) {
    for (const uint32_t seam : seams) {
      SpanQuality& row = measured.emplace_back(SpanQuality{.seam = seam, .head = head});
      std::vector<RowFigures> figures;
      for (const NotedPrompt& noted : all) {
        say(fmt::format("seam {}: {} of {} probes", seam, row.probes, all.size()));
        const PromptSpans spans{.spans = noted.spans, .seam = seam, .head = head};
        KV_ASSIGN(const bool is_right, IsRight(engine, noted, spans));
        KV_ASSIGN(const std::vector<float> rows, AnswerRows(engine, noted, spans, Reuse::kBlocks));
        ++row.probes;
        row.right += is_right;
        row.exact_right += noted.exact_is_right;
        for (size_t i = 0; i < noted.answer.size(); ++i) {
          figures.push_back(CompareRows(std::span(noted.exact_rows).subspan(i * vocab, vocab),
                                        std::span(rows).subspan(i * vocab, vocab), noted.answer[i],
                                        static_cast<uint32_t>(noted.prompt.size() + i)));
        }
      }
      row.quality = Summarise(figures);
    }
  }
  return measured;
}

std::string TableOf(std::span<const SpanQuality> rows) {
  std::string table =
      "computed after       seam  probes  right  exact  KL, mean +- error    same top\n";
  for (const SpanQuality& row : rows) {
    table += fmt::format("{:<20} {:>4}  {:>6}  {:>5}  {:>5}  {:.5f} +- {:.5f}   {:7.3f}%\n",
                         row.head ? "the start token" : "all before the first", row.seam,
                         row.probes, row.right, row.exact_right, row.quality.kl.value,
                         row.quality.kl.error, row.quality.same_top.value * 100);
  }
  return table;
}

nlohmann::ordered_json JsonOf(std::span<const SpanQuality> rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const SpanQuality& row : rows) {
    nlohmann::ordered_json one = {{"seam", row.seam},
                                  {"span_head", nullptr},
                                  {"probes", row.probes},
                                  {"right", row.right},
                                  {"exact_right", row.exact_right},
                                  {"kl_mean", row.quality.kl.value},
                                  {"kl_error", row.quality.kl.error},
                                  {"same_top", row.quality.same_top.value}};
    if (row.head) one["span_head"] = *row.head;
    list.push_back(std::move(one));
  }
  return list;
}

}  // namespace kvasir::eval
