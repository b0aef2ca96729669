// The checks of selftest that have a small pool.
#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/fault.h"
#include "base/result.h"
#include "cli/selftest_run.h"

namespace kvasir::cli {
namespace {

// Returns options with the smallest pool of at least `num_blocks` blocks, in steps of 4 KiB.
Result<EngineOptions> WithPool(EngineOptions options, uint64_t num_blocks) {
  constexpr uint64_t kStep = 4 << 10;
  options.parallel = std::min(options.parallel, 2u);
  uint64_t too_few = 0, enough = uint64_t{1} << 28;  // in steps: 1 TiB
  while (enough - too_few > 1) {
    const uint64_t steps = (too_few + enough) / 2;
    options.kv_memory_bytes = steps * kStep;
    const Result<MemoryPlan> plan = Engine::PlanMemory(options);
    (plan && plan->num_blocks >= num_blocks ? enough : too_few) = steps;
  }
  options.kv_memory_bytes = enough * kStep;
  KV_TRY(Engine::PlanMemory(options));
  return options;
}

// Returns the blocks of the lab's source, in one group.
uint64_t SourceBlocks(const Lab& lab) {
  return CeilDiv(lab.source().size(), lab.options().block_tokens);
}

// Blocks that a sequence of some tokens has: at least, while it decodes, and at most.
struct SequenceNeed {
  uint64_t least = 0, most = 0;
};
Result<SequenceNeed> NeedOf(const EngineOptions& options, uint32_t tokens) {
  KV_ASSIGN(const MemoryPlan plan, Engine::PlanMemory(options, tokens));
  SequenceNeed need;
  for (const KvGroupPlan& group : plan.groups) {
    if (group.group == "cross") continue;  // requests share their source
    const uint64_t held = std::min(tokens, group.window.value_or(tokens + 1) - 1);
    const uint64_t block_bytes = group.kv_bytes_per_token * plan.block_tokens;  // without padding
    need.least += CeilDiv(held, plan.block_tokens) * CeilDiv(block_bytes, plan.block_bytes);
    need.most += group.sequence_blocks;
  }
  return need;
}

}  // namespace

Status Evicted(Lab& lab, Check& check) {
  const size_t size = lab.prompt().size();
  // A block for each group of layers.
  KV_ASSIGN(const MemoryPlan plan, Engine::PlanMemory(lab.options()));
  const uint64_t groups = plan.kv_bytes_per_token * plan.block_tokens / plan.block_bytes;
  const uint64_t blocks_each =
      groups * ((size + lab.answer_tokens()) / lab.options().block_tokens + 2);
  const uint64_t blocks = blocks_each * 3 / 2 + SourceBlocks(lab);  // all prompts have one source
  KV_ASSIGN(const EngineOptions options, WithPool(lab.options(), blocks));
  KV_ASSIGN(const auto engine, lab.Load(options));
  const Tokens other = lab.RandomTokens(size);
  const auto branch_at = static_cast<uint32_t>(size * 2 / 3);
  const Tokens branch = Joined(Prefix(lab.prompt(), branch_at), lab.RandomTokens(size / 4));
  KV_ASSIGN(const Generated want_other, lab.Cold(lab.engine(), other));
  KV_ASSIGN(const Generated want_branch, lab.Cold(lab.engine(), branch));
  uint32_t reused = 0;
  for (int round = 0; round < 2; ++round) {
    GenerateRequest whole = lab.Ask(lab.prompt());
    whole.message_ends = {branch_at};  // where layers with a window can resume
    KV_ASSIGN(const Generated first, RunAlone(*engine, std::move(whole)));
    check.Compare(lab.reference(), first, fmt::format("round {}", round));
    KV_ASSIGN(const Generated second, RunAlone(*engine, lab.Ask(branch)));
    check.Compare(want_branch, second, fmt::format("round {}, branch", round));
    KV_ASSIGN(const Generated third, RunAlone(*engine, lab.Ask(other)));
    check.Compare(want_other, third, fmt::format("round {}, other", round));
    reused += first.receipt.cached_tokens() + second.receipt.cached_tokens();
    // Skipped with an injected fault: it would abort, but the rows must find the fault.
    if (FaultActive(Fault::kNone)) engine->CheckInvariants();
  }
  check.Expect(engine->Stats().evicted_blocks > 0, "nothing was evicted");
  check.Expect(reused > 0, "nothing was reused");
  return {};
}

Status Preempted(Lab& lab, Check& check) {
  const auto block_tokens = static_cast<uint32_t>(lab.options().block_tokens);
  const auto prompt = static_cast<uint32_t>(lab.prompt().size());
  const uint32_t longest = lab.engine().card().ctx_size - prompt;
  EngineOptions options = lab.options();
  options.kv_headroom = 0;
  options.step_tokens = block_tokens;  // windows hold little more than they see
  KV_ASSIGN(const SequenceNeed start, NeedOf(options, prompt + 1));
  uint32_t answer = std::min(std::max(lab.answer_tokens(), 3 * block_tokens), longest);
  bool too_few = false;  // blocks for both ends
  while (true) {
    KV_ASSIGN(const SequenceNeed end, NeedOf(options, prompt + answer));
    const uint64_t source = SourceBlocks(lab);
    KV_ASSIGN(options, WithPool(options, source + std::max(2 * start.most, end.most)));
    KV_ASSIGN(const MemoryPlan plan, Engine::PlanMemory(options));
    too_few = plan.num_blocks < source + 2 * end.least;
    if (too_few || answer == longest) break;
    answer = std::min(answer + block_tokens, longest);
  }
  KV_ASSIGN(const auto engine, lab.Load(options));
  // Answers of one token: the engine expects no longer ones.
  constexpr int kShortAnswers = 16;
  for (int i = 0; i < kShortAnswers; ++i) {
    GenerateRequest one = lab.Ask(lab.RandomTokens(1));
    one.max_tokens = 1;
    KV_TRY(RunAlone(*engine, std::move(one)));
  }
  const auto ask = [&](const Tokens& tokens) {
    GenerateRequest request = lab.Ask(tokens);
    request.max_tokens = answer;
    return request;
  };
  const Tokens other = lab.RandomTokens(prompt);
  std::vector<Generated> want;
  for (const Tokens& tokens : {lab.prompt(), other}) {
    GenerateRequest cold = ask(tokens);
    cold.reuse = Reuse::kNothing;
    KV_ASSIGN(Generated generated, RunAlone(lab.engine(), std::move(cold)));
    want.push_back(std::move(generated));
  }
  std::vector<GenerateRequest> both;
  both.push_back(ask(lab.prompt()));
  both.push_back(ask(other));
  KV_ASSIGN(const std::vector<Generated> got, RunTogether(*engine, std::move(both)));
  uint32_t preemptions = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    check.Compare(want[i], got[i], fmt::format("request {}", i));
    preemptions += got[i].receipt.preemptions;
  }
  check.Expect(preemptions > 0 || !too_few, "no request gave up its blocks");
  return {};
}

}  // namespace kvasir::cli
