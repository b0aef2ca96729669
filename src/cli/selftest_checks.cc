// The checks of selftest. Each compares rows with those of the same prompt computed alone, whole
// and with the cache off.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/result.h"
#include "cli/selftest_run.h"
#include "kvasir/machine.h"

namespace kvasir::cli {
namespace {

// Checks that every target of this CPU computes the same bits.
Status Targets(Lab& lab, Check& check) {
  for (const std::string& target : SupportedTargetNames()) {
    EngineOptions options = lab.options();
    options.target = target;
    KV_ASSIGN(const auto engine, lab.Load(options));
    KV_ASSIGN(const Generated generated, lab.Cold(*engine, lab.prompt()));
    check.Compare(lab.reference(), generated, "target " + target);
  }
  return {};
}

Status Threads(Lab& lab, Check& check) {
  for (const uint32_t threads : {1u, 3u}) {
    EngineOptions options = lab.options();
    options.threads = threads;
    KV_ASSIGN(const auto engine, lab.Load(options));
    KV_ASSIGN(const Generated generated, lab.Cold(*engine, lab.prompt()));
    check.Compare(lab.reference(), generated, fmt::format("{} threads", threads));
  }
  return {};
}

// Checks the textbook way: no KV is kept, and each step computes everything.
Status Textbook(Lab& lab, Check& check) {
  EngineOptions options = lab.options();
  options.cache_mode = CacheMode::kNone;
  KV_ASSIGN(const auto engine, lab.Load(options));
  KV_ASSIGN(const Generated generated, RunAlone(*engine, lab.Ask(lab.prompt())));
  check.Compare(lab.reference(), generated, "without KV");
  return {};
}

// Checks that tokens decoded one by one give the same rows as a prompt of them.
Status Decoded(Lab& lab, Check& check) {
  GenerateRequest request = lab.Ask(Joined(lab.prompt(), lab.reference().answers[0]));
  request.reuse = Reuse::kNothing;
  request.max_tokens = 0;
  KV_ASSIGN(const Generated whole, RunAlone(lab.engine(), std::move(request)));
  for (const auto& [where, digest] : lab.reference().rows) {
    const auto it = whole.rows.find(where);
    if (it == whole.rows.end()) continue;  // only the prompt computes the last token's row
    check.CompareRow(it->second, digest, fmt::format("decoded, row {}", where.second));
  }
  return {};
}

Status Chunked(Lab& lab, Check& check) {
  for (const uint32_t chunk : {1u, 3u, 16u, 17u, 64u, 100u}) {
    GenerateRequest request = lab.Ask(lab.prompt());
    request.reuse = Reuse::kNothing;
    request.chunk_tokens = chunk;
    KV_ASSIGN(const Generated generated, RunAlone(lab.engine(), std::move(request)));
    check.Compare(lab.reference(), generated, fmt::format("chunks of {}", chunk));
  }
  return {};
}

// Checks the same prompt again, and the next turn of its conversation.
Status Hit(Lab& lab, Check& check) {
  KV_ASSIGN(const auto engine, lab.Load(lab.options()));
  KV_ASSIGN(const Generated miss, RunAlone(*engine, lab.Ask(lab.prompt())));
  check.Compare(lab.reference(), miss, "first time");
  check.Expect(miss.receipt.cached_tokens() == 0, "an empty cache had something");
  KV_ASSIGN(const Generated hit, RunAlone(*engine, lab.Ask(lab.prompt())));
  check.Compare(lab.reference(), hit, "from the cache");
  check.Expect(hit.receipt.computed == 1,
               fmt::format("from the cache: {} tokens computed, not 1", hit.receipt.computed));
  const Tokens before = Joined(lab.prompt(), lab.reference().answers[0]);
  const Tokens next = Joined(before, lab.RandomTokens(lab.prompt().size() / 2));
  KV_ASSIGN(const Generated want, lab.Cold(lab.engine(), next));
  KV_ASSIGN(const Generated turn, RunAlone(*engine, lab.Ask(next)));
  check.Compare(want, turn, "next turn");
  // The last token of an answer is known and not computed.
  check.Expect(turn.receipt.cached_tokens() + 1 >= before.size(),
               fmt::format("next turn: {} of {} tokens reused", turn.receipt.cached_tokens(),
                           before.size() - 1));
  return {};
}

// Checks that an identical prompt computes only the output head.
Status Cursor(Lab& lab, Check& check) {
  KV_ASSIGN(const auto engine, lab.Load(lab.options()));
  KV_TRY(RunAlone(*engine, lab.Ask(lab.prompt())));
  GenerateRequest request = lab.Ask(lab.prompt());
  request.reuse = Reuse::kAll;
  KV_ASSIGN(const Generated generated, RunAlone(*engine, std::move(request)));
  check.Compare(lab.reference(), generated, "identical prompt");
  check.Expect(generated.receipt.computed == 0,
               fmt::format("identical prompt: {} tokens computed", generated.receipt.computed));
  return {};
}

// Checks prompts that diverge from a resident one inside a block, and at a block's first token.
Status Partial(Lab& lab, Check& check) {
  KV_ASSIGN(const auto engine, lab.Load(lab.options()));
  const uint32_t block_tokens = lab.options().block_tokens;
  const auto size = static_cast<uint32_t>(lab.prompt().size());
  std::vector<uint32_t> places = {block_tokens + 7, block_tokens * 2, size / 2 + 3, size - 1};
  std::ranges::sort(places);
  std::erase_if(places, [size](uint32_t place) { return place >= size; });
  GenerateRequest first = lab.Ask(lab.prompt());
  first.message_ends = places;  // where layers with a window can resume
  KV_TRY(RunAlone(*engine, std::move(first)));
  for (const uint32_t shared : places) {
    Tokens prompt = lab.prompt();
    const auto vocab = static_cast<TokenId>(lab.engine().card().vocab_size);
    prompt[shared] = (prompt[shared] + 1) % vocab;
    KV_ASSIGN(const Generated want, lab.Cold(lab.engine(), prompt));
    KV_ASSIGN(const Generated generated, RunAlone(*engine, lab.Ask(prompt)));
    const std::string what = fmt::format("diverged at {}", shared);
    check.Compare(want, generated, what);
    check.Expect(generated.receipt.cached_tokens() == shared,
                 fmt::format("{}: {} tokens reused", what, generated.receipt.cached_tokens()));
    check.Expect(shared % block_tokens == 0 || generated.receipt.reused_partial > 0,
                 what + ": no partial block");
  }
  return {};
}

// Checks misses, hits and decode rows in the same steps.
Status Batched(Lab& lab, Check& check) {
  KV_ASSIGN(const auto engine, lab.Load(lab.options()));
  const size_t size = lab.prompt().size();
  const std::array<Tokens, 6> prompts = {
      lab.prompt(),           Prefix(lab.prompt(), size / 2),
      lab.RandomTokens(1),    lab.RandomTokens(7),
      lab.RandomTokens(size), Joined(Prefix(lab.prompt(), size / 3), lab.RandomTokens(size / 4))};
  std::vector<Generated> want;
  for (const Tokens& prompt : prompts) {
    KV_ASSIGN(Generated generated, lab.Cold(lab.engine(), prompt));
    want.push_back(std::move(generated));
  }
  for (const bool warm : {false, true}) {
    std::vector<GenerateRequest> requests;
    for (const Tokens& prompt : prompts) {
      requests.push_back(lab.Ask(prompt));
      requests.back().chunk_tokens = 32;
    }
    KV_ASSIGN(const std::vector<Generated> got, RunTogether(*engine, std::move(requests)));
    for (size_t i = 0; i < got.size(); ++i) {
      check.Compare(want[i], got[i], fmt::format("{} mate {}", warm ? "warm" : "cold", i));
    }
  }
  const EngineStats stats = engine->Stats();
  check.Expect(stats.decode_rows > stats.decode_steps, "no two rows shared a step");
  return {};
}

// n > 1: forks that share the prompt's blocks and write their own.
Status Forked(Lab& lab, Check& check) {
  KV_ASSIGN(const auto engine, lab.Load(lab.options()));
  GenerateRequest request = lab.Ask(lab.prompt());
  request.n = std::min(3u, lab.options().parallel);
  request.sampling.temperature = 1.5f;
  request.sampling.seed = 7;
  KV_ASSIGN(const Generated forks, RunAlone(*engine, std::move(request)));
  for (uint32_t choice = 0; choice < forks.answers.size(); ++choice) {
    GenerateRequest whole = lab.Ask(Joined(lab.prompt(), forks.answers[choice]));
    whole.reuse = Reuse::kNothing;
    whole.max_tokens = 0;
    KV_ASSIGN(const Generated want, RunAlone(lab.engine(), std::move(whole)));
    for (const auto& [where, digest] : forks.rows) {
      const auto it = want.rows.find({0, where.second});
      if (where.first != choice || it == want.rows.end()) continue;
      check.CompareRow(it->second, digest, fmt::format("choice {}, row {}", choice, where.second));
    }
  }
  return {};
}

// Checks requests that come together to an empty cache: what they begin with is computed once.
Status Shared(Lab& lab, Check& check) {
  KV_ASSIGN(const auto engine, lab.Load(lab.options()));
  const uint32_t block_tokens = lab.options().block_tokens;
  const auto size = static_cast<uint32_t>(lab.prompt().size());
  const uint32_t common = size / 2 / block_tokens * block_tokens;
  const Tokens own = lab.RandomTokens(3);
  const std::array<Tokens, 3> prompts = {lab.prompt(), lab.prompt(),
                                         Joined(Prefix(lab.prompt(), common), own)};
  KV_ASSIGN(const Generated want_own, lab.Cold(lab.engine(), prompts[2]));
  std::vector<GenerateRequest> requests;
  for (const Tokens& prompt : prompts) {
    requests.push_back(lab.Ask(prompt));
    requests.back().message_ends = {common};  // where layers with a window can resume
    requests.back().chunk_tokens = block_tokens;
  }
  KV_ASSIGN(const std::vector<Generated> got, RunTogether(*engine, std::move(requests)));
  uint32_t computed = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    check.Compare(i == 2 ? want_own : lab.reference(), got[i], fmt::format("request {}", i));
    computed += got[i].receipt.computed;
  }
  // The second one computes what follows the last whole block, at least one token.
  const uint32_t most =
      size + size % block_tokens + block_tokens + static_cast<uint32_t>(own.size());
  check.Expect(lab.options().parallel < 3 || computed <= most,
               fmt::format("{} tokens computed, at most {} are new", computed, most));
  return {};
}

// Checks that the same prompt of another tenant reuses nothing, and that its receipt does not show
// that the prompt is cached.
Status Tenants(Lab& lab, Check& check) {
  KV_ASSIGN(const auto engine, lab.Load(lab.options()));
  KV_TRY(RunAlone(*engine, lab.Ask(lab.prompt())));
  GenerateRequest request = lab.Ask(lab.prompt());
  request.tenant = "another";
  KV_ASSIGN(const Generated generated, RunAlone(*engine, std::move(request)));
  check.Compare(lab.reference(), generated, "another tenant");
  check.Expect(generated.receipt.cached_tokens() == 0,
               fmt::format("another tenant: {} tokens reused", generated.receipt.cached_tokens()));
  check.Expect(generated.receipt.miss && generated.receipt.miss->reason == MissReason::kCold,
               "another tenant: the miss shows that another tenant has the prompt");
  return {};
}

}  // namespace

Status Cross(Lab& lab, Check& check) {
  KV_ASSIGN(const auto engine, lab.Load(lab.options()));
  std::vector<Tokens> sources = {lab.source(), lab.source(), Prefix(lab.source(), 1)};
  const auto vocab = static_cast<TokenId>(lab.engine().card().vocab_size);
  sources[1].back() = (sources[1].back() + 1) % vocab;
  if (lab.source().size() > 17) sources.push_back(Prefix(lab.source(), 17));
  const auto ask = [&](const Tokens& source) {
    GenerateRequest request = lab.Ask(lab.prompt());
    request.source = source;
    return request;
  };
  std::vector<Generated> want;
  for (const Tokens& source : sources) {
    GenerateRequest cold = ask(source);
    cold.reuse = Reuse::kNothing;
    KV_ASSIGN(Generated generated, RunAlone(lab.engine(), std::move(cold)));
    want.push_back(std::move(generated));
  }
  for (const bool warm : {false, true}) {
    std::vector<GenerateRequest> requests;
    for (const Tokens& source : sources) requests.push_back(ask(source));
    KV_ASSIGN(const std::vector<Generated> got, RunTogether(*engine, std::move(requests)));
    for (size_t i = 0; i < got.size(); ++i) {
      const std::string what = fmt::format("{} source {}", warm ? "warm" : "cold", i);
      check.Compare(want[i], got[i], what);
      const uint32_t reused = got[i].receipt.source_reused;
      check.Expect(reused == (warm ? sources[i].size() : 0),
                   fmt::format("{}: {} tokens reused", what, reused));
    }
  }
  return {};
}

std::vector<Check> RunChecks(Lab& lab, const std::function<void(const Check&)>& on_done) {
  using Run = Status (*)(Lab&, Check&);
  static constexpr std::pair<const char*, Run> kChecks[] = {
      {"targets", Targets},   {"threads", Threads},     {"textbook", Textbook},
      {"decoded", Decoded},   {"chunked", Chunked},     {"hit", Hit},
      {"cursor", Cursor},     {"partial", Partial},     {"batched", Batched},
      {"forked", Forked},     {"evicted", Evicted},     {"preempted", Preempted},
      {"shared", Shared},     {"restarted", Restarted}, {"loading", Loading},
      {"damaged", Damaged},   {"erased", Erased},       {"forgotten", Forgotten},
      {"tenants", Tenants},   {"drafted", Drafted},     {"adapters", Adapters},
      {"retained", Retained}, {"spans", Spanned},       {"crossed", Crossed},
      {"cross", Cross},       {"unreached", Unreached}, {"remote", Remote}};
  // Without KV nothing can be computed from a source, no disk keeps any, nothing is drafted, and
  // there are no adapters.
  static constexpr Run kWithoutEncoder[] = {Textbook,  Restarted, Loading,  Damaged,   Erased,
                                            Forgotten, Drafted,   Adapters, Unreached, Remote};
  std::vector<Check> checks;
  for (const auto& [name, run] : kChecks) {
    if (run == Crossed && !lab.rope_switch()) continue;
    if (run == Cross && !lab.has_encoder()) continue;
    if (run == Remote && !lab.remote()) continue;
    if (run == Retained && !lab.engine().card().no_retention.empty()) continue;
    const bool has_room = lab.engine().card().ctx_size > kSpannedTokens;
    if (run == Spanned && (!lab.engine().card().no_spans.empty() || !has_room)) continue;
    if (lab.has_encoder() && std::ranges::count(kWithoutEncoder, run) > 0) continue;
    Check check(name);
    for (const uint32_t size : lab.prompt_sizes()) {
      Status status = lab.DrawPrompt(size);
      if (status) status = run(lab, check);
      if (!status) check.Expect(false, status.error().text());
    }
    on_done(check);
    checks.push_back(std::move(check));
  }
  return checks;
}

}  // namespace kvasir::cli
