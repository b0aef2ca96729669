// Prompts of documents that are spans, their rows of logits, and a naive twin of them.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "block/sequence_tables.h"
#include "logit_rows.h"
#include "model/runner.h"

namespace kvasir {

inline std::vector<TokenId> SpanText(uint32_t count, uint32_t seed) {
  std::vector<TokenId> tokens(count);
  for (uint32_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<TokenId>((i * 11 + i * i / 7 + seed * 17) % 61);
  }
  return tokens;
}

// A prompt of a head, documents in some order with `between` tokens after each, and a question.
struct Documents {
  std::vector<uint32_t> order;
  uint32_t head_tokens = 21, between = 0, question = 9;
  uint32_t seam = 8;
  std::optional<uint32_t> span_head = {};

  static uint32_t Size(uint32_t document) { return 34 + document * 13 % 40; }
  GenerateRequest Ask(uint32_t max_tokens) const {
    GenerateRequest request = Greedy(SpanText(head_tokens, 1), max_tokens);
    std::vector<TokenId>& prompt = request.prompt;
    const auto append = [&](const std::vector<TokenId>& more) {
      prompt.insert(prompt.end(), more.begin(), more.end());
    };
    request.spans.emplace();
    request.spans->seam = seam;
    request.spans->head = span_head;
    for (const uint32_t document : order) {
      const auto begin = static_cast<uint32_t>(prompt.size());
      append(SpanText(Size(document), 100 + document));
      request.spans->spans.push_back({begin, static_cast<uint32_t>(prompt.size())});
      append(SpanText(between, 7 + document));
    }
    append(SpanText(question, 2));
    request.ignore_eos = true;
    return request;
  }
};

// Computes a text with spans as docs/spans.md defines it, one row at a time, each span in separate
// tables, and returns the logits of each token that is computed in its place.
class SpanTwin {
 public:
  SpanTwin(const std::string& model, const PromptSpans& spans, uint32_t prompt_tokens,
           KvFormats format = KvFormat::kF16)
      : spans_(spans), prompt_tokens_(prompt_tokens) {
    ImportedModel imported = *ImportModel(model);
    options_.max_positions = 1024;
    options_.kv_format = format;
    layout_ = std::make_unique<KvLayout>(Runner::LayoutFor(imported.config, options_));
    runner_ = std::move(*Runner::Create(std::move(imported), options_, nullptr));
  }

  std::map<uint32_t, std::vector<float>> Rows(const std::vector<TokenId>& tokens) {
    const auto size = static_cast<uint32_t>(tokens.size());
    const SequenceTables own = TablesOf(size);
    const uint32_t head = spans_.head.value_or(spans_.spans[0].begin);
    std::vector<SequenceTables> apart;
    std::vector<StepRun> runs;
    std::map<uint32_t, std::vector<float>> rows;
    uint32_t begin = 0;  // of the tokens that no run has yet
    size_t next = 0;
    for (uint32_t p = 0; p < size;) {
      while (next < spans_.spans.size() && IsOrdinary(spans_.spans[next], head)) ++next;
      const bool is_read =
          next < spans_.spans.size() && p == spans_.spans[next].begin + spans_.seam;
      if (is_read) {
        const PromptSpan span = spans_.spans[next++];
        std::vector<TokenId> alone(tokens.begin(), tokens.begin() + head);
        alone.insert(alone.end(), tokens.begin() + span.begin, tokens.begin() + span.end);
        apart.push_back(TablesOf(static_cast<uint32_t>(alone.size())));
        for (uint32_t i = 0; i < alone.size(); ++i) {
          Step({apart.back().tables(), i, 0, 1}, alone[i]);
        }
        const uint32_t shift = span.begin - head;
        const uint32_t end = std::min(span.end, prompt_tokens_ - 1);
        if (begin < p) runs.push_back({.tables = {}, .first = begin, .last = p});
        runs.push_back({.tables = apart.back().tables(),
                        .first = p - shift,
                        .last = end - shift,
                        .shift = shift});
        begin = p = end;
        continue;
      }
      StepSequence row{own.tables(), p, 0, 1};
      row.runs = runs;
      row.begin = begin;
      rows[p] = Step(row, tokens[p]);
      ++p;
    }
    return rows;
  }

 private:
  SequenceTables TablesOf(uint32_t tokens) const {
    return std::move(*SequenceTables::Create(*layout_, tokens, std::byte{0xff}));
  }
  // Tells whether a span is ordinary text: short, at the place where it is computed, or all seam.
  bool IsOrdinary(const PromptSpan& span, uint32_t head) const {
    const uint32_t size = span.end - span.begin;
    return size < kMinSpanTokens || span.begin == head ||
           span.begin + spans_.seam >= std::min(span.end, prompt_tokens_ - 1);
  }
  std::vector<float> Step(const StepSequence& row, TokenId token) {
    EXPECT_TRUE(runner_->Step({&row, 1}, {&token, 1}));
    std::vector<float> logits(runner_->config().vocab_size);
    const float* hidden = runner_->hidden(0).data();
    runner_->Logits({&hidden, 1}, logits.data());
    return logits;
  }

  const PromptSpans spans_;
  const uint32_t prompt_tokens_;
  RunnerOptions options_;
  std::unique_ptr<KvLayout> layout_;
  std::unique_ptr<Runner> runner_;
};

inline std::map<uint32_t, std::vector<float>> SpanTwinRows(const GenerateRequest& request,
                                                           const Answer& answer, size_t choice = 0,
                                                           const std::string& model = kRowModel,
                                                           KvFormats format = KvFormat::kF16) {
  std::vector<TokenId> tokens = request.prompt;
  const auto& more = answer.choices[choice].tokens;
  tokens.insert(tokens.end(), more.begin(), more.end());
  if (!more.empty()) tokens.pop_back();  // it is not computed
  SpanTwin twin(model, *request.spans, static_cast<uint32_t>(request.prompt.size()), format);
  return twin.Rows(tokens);
}

inline uint64_t CompareSpanRows(const std::map<uint32_t, std::vector<float>>& want,
                                const LogitRows& rows, uint32_t choice, const std::string& what) {
  uint64_t compared = 0;
  for (const auto& [where, row] : rows) {
    if (where.first != choice) continue;
    const auto found = want.find(where.second);
    EXPECT_TRUE(found != want.end()) << what << ", row " << where.second << " is read elsewhere";
    if (found == want.end()) continue;
    EXPECT_TRUE(SameBits(found->second, row)) << what << ", row " << where.second;
    ++compared;
  }
  return compared;
}

inline const std::vector<Documents> kDocuments = {
    {.order = {0, 1, 2}},
    {.order = {2, 0, 1, 3}, .seam = 0},
    {.order = {3, 1}, .between = 5, .seam = 16, .span_head = 1},
    {.order = {1, 2}, .head_tokens = 48, .between = 3, .seam = 20, .span_head = 32},
    {.order = {0, 2, 1}, .question = 0, .seam = 4, .span_head = 0},
    {.order = {4, 0}, .seam = 256, .span_head = 3},  // all seam: ordinary text
};

}  // namespace kvasir
