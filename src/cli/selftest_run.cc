#include "cli/selftest_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <future>
#include <utility>

#include "base/mutex.h"
#include "base/result.h"

namespace kvasir::cli {
namespace {

// A model of a billion parameters gets only one short prompt, so that the test ends soon.
constexpr uint32_t kPromptTokens[] = {215, 208, 33};
constexpr uint32_t kAnswerTokens = 24;
constexpr uint64_t kLargeParameters = 50'000'000;
constexpr uint32_t kLargePromptTokens = 55;
constexpr uint32_t kLargeAnswerTokens = 6;
constexpr uint32_t kCtxSize = 1024;

// Waits for the last event of each of several requests.
class Waiter {
 public:
  explicit Waiter(size_t count) : generated_(count), left_(count) {}

  void Record(size_t index, const Event& event) {
    const MutexLock lock(mutex_);
    Generated& generated = generated_[index];
    if (generated.answers.size() <= event.choice) generated.answers.resize(event.choice + 1);
    for (const GeneratedToken& token : event.tokens) {
      generated.answers[event.choice].push_back(token.id);
    }
    if (event.error && !error_) error_ = event.error;
    if (!event.last) return;
    generated.receipt = event.receipt;
    --left_;
    changed_.notify_one();
  }
  void RecordRow(size_t index, uint32_t choice, uint32_t position, std::span<const float> row) {
    const Digest digest = Sha256().Update(std::as_bytes(row)).Finish();
    const MutexLock lock(mutex_);
    generated_[index].rows[{choice, position}] = digest;
  }
  Result<std::vector<Generated>> Wait() {
    MutexLock lock(mutex_);
    while (left_ > 0) lock.Wait(changed_);
    if (error_) return tl::unexpected(std::move(*error_));
    return std::move(generated_);
  }

 private:
  Mutex mutex_;
  std::condition_variable changed_;
  std::vector<Generated> generated_ KV_GUARDED_BY(mutex_);
  size_t left_ KV_GUARDED_BY(mutex_);
  std::optional<Error> error_ KV_GUARDED_BY(mutex_);
};

}  // namespace

Tokens Joined(Tokens tokens, const Tokens& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

Tokens Prefix(const Tokens& tokens, size_t count) {
  return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
}

Result<std::vector<Generated>> RunTogether(Engine& engine, std::vector<GenerateRequest> requests) {
  Waiter waiter(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].on_logits = [&waiter, i](uint32_t choice, uint32_t position,
                                         std::span<const float> row) {
      waiter.RecordRow(i, choice, position, row);
    };
  }
  KV_TRY(engine.SubmitAll(std::move(requests),
                          [&waiter](size_t i, const Event& event) { waiter.Record(i, event); }));
  return waiter.Wait();
}

Status Flush(Engine& engine) {
  const auto told = std::make_shared<std::promise<Result<TierFlushed>>>();
  engine.Flush([told](Result<TierFlushed> flushed) { told->set_value(std::move(flushed)); });
  KV_TRY(told->get_future().get());
  return {};
}

Result<Generated> RunAlone(Engine& engine, GenerateRequest request) {
  std::vector<GenerateRequest> requests;
  requests.push_back(std::move(request));
  KV_ASSIGN(std::vector<Generated> generated, RunTogether(engine, std::move(requests)));
  return std::move(generated[0]);
}

void Check::Compare(const Generated& want, const Generated& got, const std::string& what) {
  for (const auto& [where, digest] : got.rows) {
    const std::string row = fmt::format("{}, row {}", what, where.second);
    const auto it = want.rows.find(where);
    Expect(it != want.rows.end(), row + " has no reference");
    if (it != want.rows.end()) CompareRow(it->second, digest, row);
  }
  Expect(want.answers == got.answers, what + ": another answer");
}

void Check::CompareRow(const Digest& want, const Digest& got, const std::string& what) {
  ++rows_;
  if (want == got) return;
  ++differ_;
  Expect(false, what + " differs");
}

void Check::Expect(bool condition, const std::string& what) {
  if (!condition && first_wrong_.empty()) first_wrong_ = what;
}

Result<Lab> Lab::Create(EngineOptions options) {
  options.speculate = Speculate::kOff;  // but where drafts are checked
  std::optional<RemoteOptions> remote = std::exchange(options.remote, std::nullopt);
  Lab lab(std::move(options));
  lab.remote_ = std::move(remote);
  KV_ASSIGN(const MemoryPlan plan, Engine::PlanMemory(lab.options_));
  uint32_t ctx_size = std::min(plan.ctx_size, kCtxSize);
  lab.options_.ctx_size = ctx_size;
  KV_ASSIGN(lab.engine_, lab.Load(lab.options_));
  const bool large = lab.engine_->card().parameters > kLargeParameters;
  if (const auto long_after = lab.engine_->card().long_rope_after) {
    const uint32_t after = *long_after;
    if (!large) lab.rope_switch_ = after;
    const uint32_t shortest = large ? kLargePromptTokens : std::ranges::min(kPromptTokens);
    if (after >= std::min(shortest, ctx_size / 4)) {  // prompts on this side of it, else beyond
      lab.options_.ctx_size = ctx_size = after;
      KV_ASSIGN(lab.engine_, lab.Load(lab.options_));
    }
  }
  if (ctx_size < 32) {
    return Fail(Code::kUnsupported, "the model's context of {} tokens is too short to test",
                ctx_size);
  }
  // Leaves room for an answer, and for a next turn as long as prompt and answer.
  const auto fit = [&](uint32_t tokens) { return std::min(tokens, ctx_size / 4); };
  if (large) lab.prompt_sizes_ = {fit(kLargePromptTokens)};
  if (!large)
    std::transform(std::begin(kPromptTokens), std::end(kPromptTokens),
                   std::back_inserter(lab.prompt_sizes_), fit);
  lab.answer_tokens_ = std::min(large ? kLargeAnswerTokens : kAnswerTokens, ctx_size / 8);
  return lab;
}

Status Lab::DrawPrompt(uint32_t size) {
  prompt_ = RandomTokens(size);
  if (has_encoder()) source_ = RandomTokens(size);
  KV_ASSIGN(reference_, Cold(*engine_, prompt_));
  return {};
}

Result<std::unique_ptr<Engine>> Lab::Load(const EngineOptions& options) const {
  return Engine::Load(options);
}

std::vector<TokenId> Lab::RandomTokens(size_t count) {
  const ModelCard& card = engine_->card();
  const uint32_t vocab =
      has_encoder() ? std::min(card.vocab_size, card.source_vocab_size) : card.vocab_size;
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) {
    token = static_cast<TokenId>(random_.Below(vocab));
  }
  return tokens;
}

GenerateRequest Lab::Ask(std::vector<TokenId> prompt) const {
  GenerateRequest request;
  request.source = source_;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.max_tokens = answer_tokens_;
  request.ignore_eos = true;
  request.reuse = Reuse::kBlocks;
  return request;
}

Result<Generated> Lab::Cold(Engine& engine, const std::vector<TokenId>& prompt) const {
  GenerateRequest request = Ask(prompt);
  request.reuse = Reuse::kNothing;
  return RunAlone(engine, std::move(request));
}

}  // namespace kvasir::cli
