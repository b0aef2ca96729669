// Measures a Runner: the speed of the model without scheduler, cache and sampler.
#include <algorithm>
#include <memory>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/cpu_topology.h"
#include "base/random.h"
#include "base/result.h"
#include "block/sequence_tables.h"
#include "engine/assembly.h"
#include "format/pack.h"
#include "import/architecture.h"
#include "kvasir/bench.h"
#include "policy/retention_policy.h"
#include "simd/target.h"

namespace kvasir {
namespace {

constexpr uint64_t kSeed = 20240917;
constexpr uint32_t kBenchSource = 128;  // tokens, of an encoder-decoder model
constexpr double kMinSeconds = 0.3;     // of the repeats of one test
constexpr double kMaxSeconds = 30.0;    // no repeat starts after this

// Draws numbers in [0.125, 0.25) with random signs.
void FillRandom(Random& random, std::vector<float>& x) {
  for (float& value : x) {
    const auto magnitude = static_cast<float>(0.125 + random.Uniform() * 0.125);
    value = random.Below(2) == 0 ? magnitude : -magnitude;
  }
}

// Returns a block's bytes: random K and V, packed.
std::vector<std::byte> RandomBlock(const BlockLayout& layout) {
  const BlockShape& shape = layout.shape();
  std::vector<std::byte> block(layout.block_bytes());
  std::vector<float> x(shape.head_dim);
  Random random(kSeed);
  for (uint32_t layer = 0; layer < shape.num_layers; ++layer) {
    const BlockPart &key = layout.key(layer), &value = layout.value(layer);
    for (uint32_t i = 0; i < shape.kv_heads * shape.block_tokens; ++i) {
      const size_t run = i / kRunTokens, lane = i % kRunTokens;
      FillRandom(random, x);
      PackKey(x.data(), key.format, shape.head_dim, lane,
              block.data() + key.offset + run * key.run_bytes,
              reinterpret_cast<uint16_t*>(block.data() + key.scale_offset) + run * kRunTokens);
      FillRandom(random, x);
      PackValue(x.data(), value.format, shape.head_dim, lane,
                block.data() + value.offset + run * value.run_bytes,
                reinterpret_cast<uint16_t*>(block.data() + value.scale_offset) + run * kRunTokens);
    }
  }
  return block;
}

// Returns the bytes of K and V that a row at `depth` reads, of which `full` groups keep so many
// tokens.
uint64_t KvBytes(const KvLayout& layout, uint32_t depth, uint32_t kept) {
  uint64_t bytes = 0;
  for (uint32_t group = 0; group < layout.num_groups(); ++group) {
    const uint64_t begin = WindowBegin(depth, layout.group(group).reach.window);
    const uint64_t seen = depth - std::min<uint64_t>(begin, depth);
    bytes += (group < layout.num_full_groups() ? kept : seen) * layout.token_bytes(group);
  }
  return bytes;
}

struct Speed {
  double median, min, max;
};

// Measures the tokens per second of `run`, which computes `tokens` tokens.
template <typename Run>
Result<Speed> Measure(uint32_t tokens, uint32_t repeats, Run run) {
  std::vector<double> tok_s;
  double total_s = 0;
  while (total_s < kMaxSeconds && (tok_s.size() < repeats || total_s < kMinSeconds)) {
    const uint64_t start_ns = MonotonicNs();
    KV_TRY(run());
    const double seconds = static_cast<double>(MonotonicNs() - start_ns) / 1e9;
    total_s += seconds;
    tok_s.push_back(tokens / seconds);
  }
  std::sort(tok_s.begin(), tok_s.end());
  return Speed{tok_s[tok_s.size() / 2], tok_s.front(), tok_s.back()};
}

// Multiply-adds of one row, counted as two: all matrices but the output head, and the head.
struct RowFlops {
  double body = 0, head = 0, attention_per_token = 0;
};

RowFlops FlopsOf(const ImportedModel& model) {
  const ModelConfig& config = model.config;
  RowFlops flops;
  ForEachLayerMatrix(model, [&](const TensorView& view) {
    flops.body += 2.0 * static_cast<double>(view.num_elements());
  });
  flops.head = 2.0 * config.vocab_size * config.hidden_size;
  flops.attention_per_token = 4.0 * config.num_layers * config.num_heads * config.head_dim;
  return flops;
}

// One sequence with all its blocks. One thread.
class ModelBench {
 public:
  static Result<ModelBench> Create(const BenchOptions& options, uint32_t max_tokens);

  // Computes tokens [depth, depth + tokens) as a prompt: steps of the most rows; logits of the last
  // row.
  Status Prefill(uint32_t depth, uint32_t tokens) {
    for (uint32_t done = 0; done < tokens;) {
      uint32_t rows = std::min(tokens - done, max_rows_);
      if (retention_) rows = std::min(rows, retention_->RowsFrom(depth + done));
      KV_TRY(Step(depth + done, rows));
      done += rows;
      if (done == tokens) Head(rows - 1);
    }
    return {};
  }
  // Decodes one token at a time, with logits of each.
  Status Decode(uint32_t depth, uint32_t tokens) {
    for (uint32_t i = 0; i < tokens; ++i) {
      KV_TRY(Step(depth + i, 1));
      Head(0);
    }
    return {};
  }

  const Runner& runner() const { return *runner_; }
  const ModelCard& card() const { return card_; }
  const std::string& kv_format() const { return kv_format_; }
  Target target() const { return target_; }
  const std::vector<uint32_t>& cpus() const { return cpus_; }
  uint64_t BytesPerToken(uint32_t depth) const {
    const bool drops = retention_ && retention_->IsInexact(depth);
    return token_bytes_ + KvBytes(layout_, depth, drops ? retention_->budget() : depth);
  }

 private:
  explicit ModelBench(KvLayout layout) : layout_(std::move(layout)) {}

  // Gives a sequence what heavy keeps: after a decision whole blocks up to the budget, of which
  // only the number matters here, and then all since. Its weights count at the next one.
  void BoundHeavy(uint32_t position, StepRun* run, StepSequence* sequence) {
    const uint32_t next = retention_->NextDecision(position);
    const uint32_t multiple = position / 64 * 64;
    const uint32_t at = retention_->IsDecision(multiple) ? multiple : retention_->inexact_from();
    sequence->begin = retention_->FirstRecentBlock(at) * kHeavyBlock;
    *run = {tables_->tables(), 0, retention_->budget() - (at - sequence->begin), std::nullopt};
    run->last = run->last / kHeavyBlock * kHeavyBlock;
    sequence->runs = {run, 1};
    const uint32_t blocks = sequence->run_blocks() + (next - sequence->begin) / kHeavyBlock + 1;
    if (!retention_->IsScored(position + sequence->num_rows - 1)) return;
    sums_.resize(std::max(sums_.size(), size_t{blocks} * layout_.num_full_layers() *
                                            layout_.layout(0).shape().kv_heads));
    sequence->block_sums = sums_.data();
    sequence->block_sums_stride = blocks;
    const uint32_t from = next - RetentionPolicy::kScoredTokens;
    sequence->scored_from = from - std::min(from, position);
  }

  Status Step(uint32_t position, uint32_t rows) {
    StepSequence sequence{.tables = tables_->tables(),
                          .position = position,
                          .first_row = 0,
                          .num_rows = rows,
                          .source_tokens = source_tokens_};
    StepRun sinks{tables_->tables(), 0, retention_ ? retention_->sinks() : 0,
                  retention_ ? std::optional(retention_->sink_query_position()) : std::nullopt};
    if (retention_ && retention_->is_heavy()) {
      if (retention_->IsInexact(position)) BoundHeavy(position, &sinks, &sequence);
    } else if (retention_ && retention_->IsInexact(position)) {
      sequence.window = retention_->window();
      if (sinks.last > 0) sequence.runs = {&sinks, 1};
    }
    return runner_->Step({&sequence, 1}, std::span(ids_).subspan(position, rows));
  }
  void Head(uint32_t row) {
    const float* hidden = runner_->hidden(row).data();
    runner_->Logits({&hidden, 1}, logits_.data());
  }

  uint32_t max_rows_ = 0;
  uint32_t source_tokens_ = 0;  // of an encoder-decoder model, whose KV is generated
  uint64_t token_bytes_ = 0;    // of the weights
  ModelCard card_;
  std::string kv_format_;
  Target target_{};
  std::vector<uint32_t> cpus_;
  std::unique_ptr<Runner> runner_;
  KvLayout layout_;
  std::optional<SequenceTables> tables_;
  std::optional<RetentionPolicy> retention_;  // of all tokens; absent: they see all
  std::vector<TokenId> ids_;
  std::vector<float> logits_;
  std::vector<float> sums_;  // of blocks, for heavy
};

Result<ModelBench> ModelBench::Create(const BenchOptions& options, uint32_t max_tokens) {
  EngineOptions engine = options.engine;
  engine.ctx_size.reset();
  KV_ASSIGN(Assembly assembly, Assemble(engine));
  if (max_tokens > assembly.ctx_size) {
    return FailField(Code::kInvalidArgument, "depth",
                     "with the longest prompt or answer these are {} tokens, more than the model's "
                     "context of {}",
                     max_tokens, assembly.ctx_size);
  }
  std::optional<RetentionPolicy> retention;
  if (engine.retention.policy != Retention::kFull) {
    RetentionChoice choice = engine.retention;
    choice.exact_tokens = 0;
    KV_ASSIGN(retention,
              RetentionPolicy::Create(choice, {.ctx_size = assembly.ctx_size, .prompt_tokens = 0}));
  }
  assembly.runner.max_positions = max_tokens;
  ModelBench bench(Runner::LayoutFor(assembly.model.config, assembly.runner));
  bench.retention_ = retention;
  bench.max_rows_ = assembly.runner.max_rows;
  if (assembly.model.config.encoder) bench.source_tokens_ = std::min(kBenchSource, max_tokens);
  bench.token_bytes_ = assembly.runner_plan.token_bytes;
  bench.card_ = CardOf(assembly);
  bench.kv_format_ = assembly.plan.kv_format;
  bench.target_ = assembly.runner.target;
  bench.cpus_ = assembly.runner.cpus;
  const auto progress = [&](double share) {
    if (options.progress) options.progress(fmt::format("packing weights: {:.0f}%", share * 100));
  };
  KV_ASSIGN(bench.runner_, Runner::Create(std::move(assembly.model), assembly.runner, progress));
  KV_ASSIGN(bench.tables_, SequenceTables::Create(bench.layout_, max_tokens));
  for (uint32_t group = 0; group < bench.layout_.num_groups(); ++group) {
    bench.tables_->Fill(group, RandomBlock(bench.layout_.layout(group)));
  }
  Random random(kSeed);
  const uint32_t vocab = bench.runner_->config().vocab_size;
  // They are sources too.
  const uint32_t ids =
      bench.card_.decoder_start ? std::min(vocab, bench.card_.source_vocab_size) : vocab;
  for (uint32_t i = 0; i < max_tokens; ++i) {
    bench.ids_.push_back(static_cast<TokenId>(random.Below(ids)));
  }
  bench.logits_.resize(vocab);
  return bench;
}

Result<BenchResult> RunOne(ModelBench& bench, const BenchOptions& options, const RowFlops& flops,
                           BenchTest test, uint32_t tokens, uint32_t depth) {
  const bool prefill = test == BenchTest::kPrefill;
  if (options.progress) {
    options.progress(
        fmt::format("{} of {} tokens at depth {}", prefill ? "prefill" : "decode", tokens, depth));
  }
  KV_TRY(prefill ? bench.Prefill(depth, std::min(tokens, 64u)) : bench.Decode(depth, 1));  // warm
  KV_ASSIGN(const Speed speed, Measure(tokens, options.repeats, [&] {
              return prefill ? bench.Prefill(depth, tokens) : bench.Decode(depth, tokens);
            }));
  const double attention = flops.attention_per_token * (depth + tokens / 2.0);
  const double head = prefill ? flops.head / tokens : flops.head;
  return BenchResult{test,
                     tokens,
                     depth,
                     speed.median,
                     speed.min,
                     speed.max,
                     bench.BytesPerToken(depth),
                     flops.body + head + attention};
}

}  // namespace

Result<BenchReport> RunBench(const BenchOptions& options) {
  uint32_t longest = options.decode_tokens;
  for (const uint32_t tokens : options.prefill_tokens) longest = std::max(longest, tokens);
  if (longest == 0 || options.depths.empty()) {
    if (options.depths.empty()) {
      return FailField(Code::kInvalidArgument, "depth", "nothing to measure; give at least one");
    }
    return FailField(Code::kInvalidArgument, "decode_tokens",
                     "nothing to measure with no prompt either; give one of both");
  }
  const uint64_t max_tokens =
      uint64_t{longest} + *std::max_element(options.depths.begin(), options.depths.end());
  if (max_tokens > std::numeric_limits<uint32_t>::max()) {
    return FailField(Code::kInvalidArgument, "depth", "{} tokens are too many; give less than 2^32",
                     max_tokens);
  }
  const ComputeScope compute;
  BenchReport report;
  if (options.progress) options.progress("measuring this machine");
  report.limits = MeasureLimits(options.engine.threads);
  (void)KeepLimits(options.engine.cache_dir, report.limits);  // without it a server shows no share
  KV_ASSIGN(ModelBench bench, ModelBench::Create(options, static_cast<uint32_t>(max_tokens)));
  const PinScope pin(bench.cpus());  // the calling thread computes too
  report.model = bench.card().id;
  report.weights = bench.card().dtype;
  report.kv_format = bench.kv_format();
  report.target = NameOf(bench.target());
  report.parameters = bench.card().parameters;
  const RowFlops flops = FlopsOf(bench.runner().source());
  for (const uint32_t depth : options.depths) {
    for (const uint32_t tokens : options.prefill_tokens) {
      KV_ASSIGN(BenchResult result,
                RunOne(bench, options, flops, BenchTest::kPrefill, tokens, depth));
      report.results.push_back(result);
    }
    if (options.decode_tokens == 0) continue;
    KV_ASSIGN(BenchResult result,
              RunOne(bench, options, flops, BenchTest::kDecode, options.decode_tokens, depth));
    report.results.push_back(result);
  }
  return report;
}

}  // namespace kvasir
