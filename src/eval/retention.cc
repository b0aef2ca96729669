#include "eval/retention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/result.h"
#include "kvasir/engine_ranges.h"

namespace kvasir::eval {
namespace {

constexpr int kTenths = 10;

// Calls `on_row` for each row of a prompt, in order, on the engine's thread.
Status ForRows(Engine& engine, std::span<const TokenId> tokens,
               const std::optional<RetentionChoice>& choice,
               const std::function<void(uint32_t, std::span<const float>)>& on_row) {
  GenerateRequest request;
  request.prompt.assign(tokens.begin(), tokens.end());
  request.max_tokens = 0;
  request.ignore_eos = true;
  request.reuse = Reuse::kNothing;
  request.retention = choice;
  request.on_logits = [&](uint32_t, uint32_t position, std::span<const float> row) {
    if (position + 1 < tokens.size()) on_row(position, row);
  };
  KV_TRY(Generate(engine, std::move(request)));
  return {};
}

double NllOf(std::span<const float> row, TokenId next) {
  return CompareRows(row, row, next, 0).nll;
}

std::vector<TokenId> Joined(std::vector<TokenId> ids, std::span<const TokenId> more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

// Puts the other question and its answer before the probe's question: on the probe's context.
Probe After(const Probe& probe, const std::string& question, const std::string& answer) {
  Probe second = probe;
  second.messages.insert(second.messages.end() - 1, {{"user", question}, {"assistant", answer}});
  return second;
}

}  // namespace

Result<uint64_t> FactDistance(const Engine& engine, const Probe& probe, uint64_t prompt_tokens) {
  for (size_t i = probe.messages.size() - 1; i-- > 0;) {
    const size_t at = probe.messages[i].content.rfind(probe.expect);
    if (at == std::string::npos) continue;
    Probe begin = probe;
    begin.messages.resize(i + 1);
    begin.messages[i].content.resize(at + probe.expect.size());
    KV_ASSIGN(const std::vector<TokenId> ids, PromptOf(engine, begin));
    return prompt_tokens - std::min<uint64_t>(prompt_tokens, ids.size());
  }
  return 0;
}

Result<std::unique_ptr<RetentionComparison>> RetentionComparison::Create(Options options) {
  std::unique_ptr<RetentionComparison> made(new RetentionComparison(std::move(options)));
  EngineOptions& engine = made->options_.engine;
  engine.retention = {};
  engine.max_queue_ms = kMaxQueueMsRange.most;  // only the probes wait
  KV_ASSIGN(engine.kv_memory_bytes, KvMemoryFor(engine));
  KV_ASSIGN(made->exact_, made->options_.load(engine));
  engine.image_cap_bytes = made->exact_->options().image_cap_bytes;
  KV_ASSIGN(made->bounded_, Engine::Load(engine));
  return made;
}

Result<RetentionMeasured> RetentionComparison::Prepare(const RetentionChoice& choice) const {
  EngineOptions engine = options_.engine;
  engine.retention = choice;
  engine.retention.exact_tokens.reset();
  KV_ASSIGN(const MemoryPlan plan, Engine::PlanMemory(engine));
  RetentionMeasured measured{.choice = engine.retention, .name = plan.retention};
  KV_ASSIGN(const RetentionChoice numbers, ParseRetentionChoice(plan.retention));
  measured.budget = numbers.budget.value_or(0);
  measured.sinks = numbers.sinks.value_or(0);
  measured.recent = numbers.recent.value_or(measured.budget - measured.sinks);
  if (measured.budget == 0 || measured.budget >= exact_->card().ctx_size) {
    return FailField(Code::kInvalidArgument, "retention",
                     "{} drops nothing of the windows of {} tokens; give a smaller budget, or a "
                     "larger --ctx-size",
                     measured.name, exact_->card().ctx_size);
  }
  return measured;
}

Status RetentionComparison::MeasureText(const EvalText& text, RetentionMeasured* measured) {
  std::vector<RowFigures> rows;
  for (size_t i = 0; i < text.windows.size(); ++i) {
    options_.say(fmt::format("{}: window {} of {}", measured->name, i + 1, text.windows.size()));
    KV_TRY(MeasureWindow(text.windows[i], *measured, &rows));
  }
  measured->quality = Summarise(rows);
  measured->depths = ByDepth(rows);
  return {};
}

// Measures a window. The rows of full attention come in chunks that fit rows_bytes, when the
// first row of each is reached: the other engine finds the earlier tokens in its cache.
Status RetentionComparison::MeasureWindow(std::span<const TokenId> window,
                                          const RetentionMeasured& measured,
                                          std::vector<RowFigures>* rows) {
  const size_t vocab = exact_->card().vocab_size;
  const auto num_rows = static_cast<uint32_t>(window.size() - 1);
  const auto chunk = static_cast<uint32_t>(
      std::clamp<uint64_t>(options_.rows_bytes / (vocab * sizeof(float)), 1, num_rows));
  std::vector<float> reference(chunk * vocab);
  uint32_t from = 0, to = 0;  // of reference
  Status computed;
  RetentionChoice choice = measured.choice;
  choice.exact_tokens = 0;
  KV_TRY(ForRows(*bounded_, window, choice, [&](uint32_t position, std::span<const float> row) {
    if (!computed) return;
    if (position >= to) {
      from = to;
      to = std::min(from + chunk, num_rows);
      computed = ComputeRows(*exact_, {}, window.first(to), from, true, reference);
      if (!computed) return;
    }
    const std::span<const float> want =
        std::span(reference).subspan((position - from) * vocab, vocab);
    rows->push_back(CompareRows(want, row, window[position + 1], position));
  }));
  exact_->Erase(kEvalTenant);  // otherwise a window that begins alike would find rows in the cache
  return computed;
}

Result<RightCount> RetentionComparison::Count(std::span<const std::vector<TokenId>> prompts,
                                              std::span<const Probe> probes,
                                              const RetentionChoice& choice) {
  KV_ASSIGN(const std::vector<Answer> exact, AnswerPrompts(*exact_, prompts, probes, {}));
  KV_ASSIGN(const std::vector<Answer> answers, AnswerPrompts(*bounded_, prompts, probes, choice));
  RightCount count{.probes = prompts.size()};
  count.exact_right = static_cast<uint64_t>(std::ranges::count(exact, true, &Answer::right));
  count.right = static_cast<uint64_t>(std::ranges::count(answers, true, &Answer::right));
  return count;
}

Status RetentionComparison::MeasureProbes(std::span<const Probe> probes,
                                          RetentionMeasured* measured) {
  if (probes.empty()) return {};
  options_.say(fmt::format("{}: {} probes", measured->name, probes.size()));
  std::vector<std::vector<TokenId>> prompts, far_prompts, first_prompts, second_prompts;
  std::vector<Probe> far;
  std::vector<std::string> questions;
  for (size_t i = 0; i < probes.size(); ++i) {
    KV_ASSIGN(std::vector<TokenId> prompt, PromptOf(*exact_, probes[i]));
    KV_ASSIGN(const uint64_t distance, FactDistance(*exact_, probes[i], prompt.size()));
    if (distance > measured->budget) {
      far.push_back(probes[i]);
      far_prompts.push_back(prompt);
    }
    prompts.push_back(std::move(prompt));
    Probe first = probes[i];
    questions.push_back(probes[(i + 1) % probes.size()].messages.back().content);
    first.messages.back().content = questions.back();
    KV_ASSIGN(first_prompts.emplace_back(), PromptOf(*exact_, first));
  }
  KV_ASSIGN(measured->all, Count(prompts, probes, measured->choice));
  KV_ASSIGN(measured->far, Count(far_prompts, far, measured->choice));
  KV_ASSIGN(const std::vector<Answer> firsts,
            AnswerPrompts(*bounded_, first_prompts, probes, measured->choice));
  for (size_t i = 0; i < probes.size(); ++i) {
    const Probe second = After(probes[i], questions[i], firsts[i].text);
    KV_ASSIGN(second_prompts.emplace_back(), PromptOf(*exact_, second));
  }
  KV_ASSIGN(measured->second, Count(second_prompts, probes, measured->choice));
  return {};
}

// Measures a stream. Both see the text in the same order; the fresh windows begin with the text's
// start token, if it has one. A token without a prediction in either of them does not count.
Status RetentionComparison::MeasureStream(std::span<const TokenId> window,
                                          RetentionMeasured* measured) {
  options_.say(fmt::format("{}: a stream of {} tokens", measured->name, window.size()));
  std::vector<double> stream(window.size(), -1), fresh(window.size(), -1);  // [token]
  RetentionChoice choice = measured->choice;
  choice.exact_tokens = 0;
  KV_TRY(ForRows(*bounded_, window, choice, [&](uint32_t position, std::span<const float> row) {
    stream[position + 1] = NllOf(row, window[position + 1]);
  }));
  const bool has_bos = std::ranges::count(exact_->card().bos, window[0]) > 0;
  const std::vector<TokenId> front(window.begin(), window.begin() + (has_bos ? 1 : 0));
  const size_t most = exact_->card().ctx_size - front.size();
  for (size_t at = front.size(); at < window.size(); at += most) {
    const std::span<const TokenId> piece = window.subspan(at, std::min(most, window.size() - at));
    const std::vector<TokenId> ids = Joined(front, piece);
    if (ids.size() < 2) break;
    KV_TRY(ForRows(*exact_, ids, {}, [&](uint32_t position, std::span<const float> row) {
      fresh[at + position + 1 - front.size()] = NllOf(row, ids[position + 1]);
    }));
  }
  measured->stream.resize(kTenths);
  for (size_t token = 0; token < window.size(); ++token) {
    if (stream[token] < 0 || fresh[token] < 0) continue;
    StreamPart& part = measured->stream[token * kTenths / window.size()];
    ++part.tokens;
    part.perplexity += stream[token];
    part.fresh_perplexity += fresh[token];
  }
  for (StreamPart& part : measured->stream) {
    const auto tokens = static_cast<double>(std::max<uint64_t>(part.tokens, 1));
    part.perplexity = std::exp(part.perplexity / tokens);
    part.fresh_perplexity = std::exp(part.fresh_perplexity / tokens);
  }
  return {};
}

}  // namespace kvasir::eval
