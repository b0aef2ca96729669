#include "eval/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <optional>

#include "base/bytes.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/utf8.h"
#include "kvasir/engine_ranges.h"
#include "kvasir/images.h"
#include "kvasir/machine.h"

namespace kvasir::eval {
namespace {

constexpr uint32_t kProbeAnswerTokens = 64;
constexpr size_t kMaxGroup = 8;                       // engines beside the reference at once
constexpr uint64_t kFreeBytes = uint64_t{256} << 20;  // that they may always add
constexpr size_t kProbesAtOnce = 64;

// Collects the answers of several requests. Thread-safe.
class AnswerSheet {
 public:
  explicit AnswerSheet(size_t count) : texts_(count), left_(count) {}
  void Record(size_t index, const Event& event) {
    const MutexLock lock(mutex_);
    texts_[index] += event.text;
    if (event.error && !error_) error_ = event.error;
    if (event.last && --left_ == 0) done_.notify_one();
  }
  Result<std::vector<std::string>> Wait() {
    MutexLock lock(mutex_);
    while (left_ > 0) lock.Wait(done_);
    if (error_) return tl::unexpected(std::move(*error_));
    return std::move(texts_);
  }

 private:
  Mutex mutex_;
  std::condition_variable done_;
  std::vector<std::string> texts_ KV_GUARDED_BY(mutex_);
  size_t left_ KV_GUARDED_BY(mutex_);
  std::optional<Error> error_ KV_GUARDED_BY(mutex_);
};

}  // namespace

Status ComputeRows(Engine& engine, std::span<const TokenId> source, std::span<const TokenId> tokens,
                   uint32_t from, bool cached, std::span<float> out) {
  const size_t vocab = engine.card().vocab_size;
  GenerateRequest request;
  request.tenant = kEvalTenant;
  request.source.assign(source.begin(), source.end());
  request.prompt.assign(tokens.begin(), tokens.end());
  request.max_tokens = 0;
  request.ignore_eos = true;
  request.reuse = cached ? Reuse::kBlocks : Reuse::kNothing;
  request.logits_from = from;
  size_t told = 0;
  request.on_logits = [&](uint32_t, uint32_t position, std::span<const float> row) {
    if (position >= tokens.size()) return;
    KV_CHECK(position >= from && row.size() == vocab);
    std::ranges::copy(row, out.begin() + static_cast<std::ptrdiff_t>((position - from) * vocab));
    ++told;
  };
  KV_TRY(Generate(engine, std::move(request)));
  KV_CHECK(told == tokens.size() - from);
  return {};
}

Result<uint64_t> KvMemoryFor(EngineOptions options) {
  options.kv_memory_bytes = uint64_t{1} << 40;
  KV_ASSIGN(const MemoryPlan plan, Engine::PlanMemory(options));
  const uint64_t tokens = 2 * RoundUp(uint64_t{plan.ctx_size}, plan.block_tokens);
  return plan.kv_bytes_per_token * (tokens + 16 * plan.block_tokens) * 5 / 4 + (uint64_t{16} << 20);
}

bool HasWords(std::string_view text, std::string_view expect) {
  KV_CHECK(!expect.empty());
  for (size_t at = 0; (at = text.find(expect, at)) != std::string_view::npos; ++at) {
    size_t before = at == 0 ? 0 : StartOfCharBefore(text, at), after = at + expect.size();
    const bool begins = at == 0 || !IsWordChar(NextChar(text, &before));
    if (begins && (after == text.size() || !IsWordChar(NextChar(text, &after)))) return true;
  }
  return false;
}

struct Comparison::Candidate {
  Measured measured;
  std::unique_ptr<Engine> engine;
  std::vector<RowFigures> rows;
};

Comparison::Comparison(ComparisonOptions options, uint32_t threads)
    : options_(std::move(options)), pool_(threads, [] {}) {}

Result<std::unique_ptr<Comparison>> Comparison::Create(ComparisonOptions options) {
  const uint32_t threads = options.engine.threads ? *options.engine.threads : DefaultThreads();
  std::unique_ptr<Comparison> made(new Comparison(std::move(options), threads));
  KV_TRY(made->pool_.status());
  KV_TRY(made->LoadReference());
  if (made->is_small() || made->reference_->card().weights_shared) return made;
  // The load that makes an image keeps the weights that it packed; the next one maps the image, and
  // the engines beside it use the same pages.
  const std::vector<ImageEntry> images = ListImages(made->options_.engine.cache_dir);
  const bool has_image = made->options_.engine.image_cap_bytes > 0 && !images.empty() &&
                         images.front().model == made->reference_->card().id &&
                         images.front().file_bytes >= made->reference_->plan().weights_bytes;
  if (has_image) KV_TRY(made->LoadReference());
  return made;
}

Status Comparison::LoadReference() {
  reference_.reset();
  EngineOptions engine = OptionsFor({"f32", {}});
  KV_ASSIGN(engine.kv_memory_bytes, KvMemoryFor(engine));
  KV_ASSIGN(reference_, options_.load(engine));
  // Keeps what `load` found about the cache folder, so that later loads do not warn again.
  options_.engine.image_cap_bytes = reference_->options().image_cap_bytes;
  return {};
}

EngineOptions Comparison::OptionsFor(const KvChoice& choice) const {
  EngineOptions engine = options_.engine;
  engine.kv_format = choice.format;
  engine.kv_skip_layers = choice.skip_layers;
  engine.max_queue_ms = kMaxQueueMsRange.most;  // only the probes wait
  return engine;
}

Result<MemoryPlan> Comparison::PlanOf(const KvChoice& choice) const {
  EngineOptions engine = OptionsFor(choice);
  KV_ASSIGN(engine.kv_memory_bytes, KvMemoryFor(engine));
  return Engine::PlanMemory(engine);
}

Result<std::vector<Measured>> Comparison::Measure(std::span<const KvChoice> choices,
                                                  const EvalText& text,
                                                  std::span<const Probe> probes) {
  std::vector<Measured> all;
  while (!choices.empty()) {
    KV_ASSIGN(const size_t taken, GroupOf(choices));
    KV_ASSIGN(std::vector<Measured> group, MeasureGroup(choices.first(taken), text, probes));
    std::ranges::move(group, std::back_inserter(all));
    choices = choices.subspan(taken);
  }
  return all;
}

Result<size_t> Comparison::GroupOf(std::span<const KvChoice> choices) const {
  const size_t most = std::min(choices.size(), kMaxGroup);
  if (is_small()) return most;
  if (!reference_->card().weights_shared) return 1;
  uint64_t beside_bytes = 0;
  for (size_t taken = 0; taken < most; ++taken) {
    KV_ASSIGN(const MemoryPlan plan, PlanOf(choices[taken]));
    // Only one request runs at a time.
    beside_bytes += plan.total_bytes - plan.weights_bytes - plan.request_bytes -
                    plan.session_bytes - plan.head_bytes - plan.grammar_bytes;
    if (beside_bytes > std::max(plan.weights_bytes, kFreeBytes)) return std::max<size_t>(taken, 1);
  }
  return most;
}

Result<std::vector<Measured>> Comparison::MeasureGroup(std::span<const KvChoice> choices,
                                                       const EvalText& text,
                                                       std::span<const Probe> probes) {
  std::vector<Candidate> candidates;
  std::string names;
  for (const KvChoice& choice : choices) {
    EngineOptions engine = OptionsFor(choice);
    KV_ASSIGN(engine.kv_memory_bytes, KvMemoryFor(engine));
    Candidate& candidate = candidates.emplace_back();
    KV_ASSIGN(candidate.engine, Engine::Load(engine));
    candidate.measured.choice = choice;
    candidate.measured.kv_format = candidate.engine->plan().kv_format;
    candidate.measured.kv_bytes_per_token = candidate.engine->plan().kv_bytes_per_token;
    names += (names.empty() ? "" : "; ") + candidate.measured.kv_format;
  }
  if (candidates.size() > 3) names = fmt::format("{} formats", candidates.size());
  uint64_t done = 0;
  for (size_t i = 0; i < text.windows.size(); ++i) {
    options_.say(fmt::format("{}: {} of {} tokens", names, done, text.scored_tokens()));
    KV_TRY(CompareWindow(text, i, candidates));
    done += text.windows[i].size() - 1 - text.first_scored;
  }
  std::vector<Measured> all;
  for (Candidate& candidate : candidates) {
    Measured& measured = all.emplace_back(std::move(candidate.measured));
    measured.quality = Summarise(candidate.rows);
    measured.depths = ByDepth(candidate.rows);
    KV_ASSIGN(measured.answers, AnswerProbes(*candidate.engine, measured.kv_format, probes));
  }
  return all;
}

Status Comparison::CompareWindow(const EvalText& text, size_t index,
                                 std::vector<Candidate>& candidates) {
  const std::span<const TokenId> window = text.windows[index];
  const std::span<const TokenId> source =
      text.sources.empty() ? std::span<const TokenId>() : text.sources[index];
  const size_t vocab = reference_->card().vocab_size;
  const auto num_rows = static_cast<uint32_t>(window.size() - 1);  // the last token has no next
  const auto chunk = static_cast<uint32_t>(
      std::clamp<uint64_t>(options_.rows_bytes / (vocab * sizeof(float)), 1, num_rows));
  const bool cached = chunk < num_rows;
  reference_rows_.resize(std::max(reference_rows_.size(), chunk * vocab));
  rows_.resize(reference_rows_.size());
  for (uint32_t from = text.first_scored; from < num_rows; from += chunk) {
    const uint32_t to = std::min(from + chunk, num_rows);
    const auto tokens = window.first(to);
    KV_TRY(ComputeRows(*reference_, source, tokens, from, cached, reference_rows_));
    for (Candidate& candidate : candidates) {
      KV_TRY(ComputeRows(*candidate.engine, source, tokens, from, cached, rows_));
      const size_t first = candidate.rows.size();
      candidate.rows.resize(first + to - from);
      pool_.Run(to - from, [&](uint32_t i, uint32_t) {
        const auto row_of = [&](const std::vector<float>& rows) {
          return std::span(rows).subspan(i * vocab, vocab);
        };
        candidate.rows[first + i] =
            CompareRows(row_of(reference_rows_), row_of(rows_), window[from + i + 1], from + i);
      });
    }
  }
  if (!cached) return {};
  reference_->Erase(
      kEvalTenant);  // otherwise a window that begins alike would find rows in the cache
  for (Candidate& candidate : candidates) candidate.engine->Erase(kEvalTenant);
  return {};
}

Result<std::vector<Answer>> Comparison::AnswerReference(std::span<const Probe> probes) {
  return AnswerProbes(*reference_, "f32", probes);
}

Result<std::vector<Answer>> Comparison::AnswerProbes(Engine& engine, const std::string& name,
                                                     std::span<const Probe> probes) {
  std::vector<Answer> answers;
  while (answers.size() < probes.size()) {
    options_.say(fmt::format("{}: {} of {} probes", name, answers.size(), probes.size()));
    const auto rest = probes.subspan(answers.size());
    const auto some = rest.first(std::min(rest.size(), kProbesAtOnce));
    std::vector<std::vector<TokenId>> prompts;
    for (const Probe& probe : some) {
      KV_ASSIGN(prompts.emplace_back(), PromptOf(engine, probe));
    }
    KV_ASSIGN(std::vector<Answer> more, AnswerPrompts(engine, prompts, some, {}));
    std::ranges::move(more, std::back_inserter(answers));
  }
  return answers;
}

Result<std::vector<Answer>> AnswerPrompts(Engine& engine,
                                          std::span<const std::vector<TokenId>> prompts,
                                          std::span<const Probe> probes,
                                          const std::optional<RetentionChoice>& retention) {
  std::vector<Answer> answers;
  while (answers.size() < prompts.size()) {
    std::vector<GenerateRequest> requests;
    const size_t first = answers.size();
    for (size_t i = first; i < std::min(prompts.size(), first + kProbesAtOnce); ++i) {
      GenerateRequest& request = requests.emplace_back();
      request.prompt = prompts[i];
      if (request.prompt.size() >= engine.card().ctx_size) {
        return Fail(
            Code::kInvalidArgument,
            "--recall: {}: {} tokens do not fit the context of {} with an answer; {}"
            "leave it out",
            probes[i].where, request.prompt.size(), engine.card().ctx_size,
            request.prompt.size() < engine.card().max_positions ? "raise --ctx-size or " : "");
      }
      request.tenant = kEvalTenant;
      request.sampling.temperature = 0;
      request.max_tokens = kProbeAnswerTokens;
      request.reuse = Reuse::kNothing;
      request.retention = retention;
    }
    const auto sheet = std::make_shared<AnswerSheet>(requests.size());
    KV_TRY(engine.SubmitAll(std::move(requests), [sheet](size_t index, const Event& event) {
      sheet->Record(index, event);
    }));
    KV_ASSIGN(const std::vector<std::string> texts, sheet->Wait());
    for (const std::string& text : texts) {
      answers.push_back({text, HasWords(text, probes[answers.size()].expect)});
    }
  }
  return answers;
}

}  // namespace kvasir::eval
