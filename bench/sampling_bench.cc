// From logits to tokens, beside the step that makes the logits: what sampling eight rows of a
// vocabulary of 151,936 costs, as a share of a decode step of a model of a billion parameters with
// a batch of eight, measured in the same run. One JSON line per way to sample. Exit status 1 when a
// step fails (a missed target is only shown, because machines differ).
//
// usage: sampling_bench [SHAPE [THREADS [WEIGHTS]]]
// (default: llama-1b, as many threads as the machine has cores, bf16; WEIGHTS as --weights takes
// them)
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"
#include "block/sequence_tables.h"
#include "engine/assembly.h"
#include "model/runner.h"
#include "sampling/sampler.h"
#include "simd/target.h"

namespace kvasir {
namespace {

constexpr uint32_t kBatch = 8;
constexpr uint32_t kVocab = 151'936;  // Qwen 2's, the largest that is common
constexpr uint32_t kSteps = 6, kRounds = 60;
constexpr double kTarget = 0.01;

// Makes logits as models do: a bulk far below, some hundred tokens that compete. `spread`: of the
// bulk's normal distribution; at 1 and above nearly every token has weight.
std::vector<float> RandomLogits(Random& random, double spread, uint32_t peaks) {
  std::vector<float> logits(kVocab);
  for (float& logit : logits) {
    double normal = -6;
    for (int i = 0; i < 12; ++i) normal += random.Uniform();
    logit = static_cast<float>(normal * spread);
  }
  for (uint32_t i = 0; i < peaks; ++i) {
    logits[random.Below(kVocab)] = static_cast<float>(20 - 12 * std::sqrt(random.Uniform()));
  }
  return logits;
}

double MedianUs(std::vector<double> times_us) {
  std::nth_element(times_us.begin(), times_us.begin() + static_cast<ptrdiff_t>(times_us.size() / 2),
                   times_us.end());
  return times_us[times_us.size() / 2];
}

// A runner with kBatch sequences of one block each.
struct Batch {
  std::unique_ptr<Runner> runner;
  std::vector<SequenceTables> tables;
};

Batch MakeBatch(const EngineOptions& options) {
  auto assembly = Assemble(options);
  if (!assembly) {
    fmt::print(stderr, "sampling_bench: {}\n", assembly.error().text());
    std::exit(2);
  }
  assembly->runner.max_positions = 64;
  const KvLayout layout = Runner::LayoutFor(assembly->model.config, assembly->runner);
  Batch batch;
  batch.runner = std::move(*Runner::Create(std::move(assembly->model), assembly->runner, nullptr));
  for (uint32_t i = 0; i < kBatch; ++i) {
    batch.tables.push_back(std::move(*SequenceTables::Create(layout, layout.block_tokens())));
  }
  return batch;
}

// Returns the microseconds of each of kSteps decode steps, output head included.
double StepUs(Batch& batch) {
  Runner& runner = *batch.runner;
  const uint32_t vocab = runner.config().vocab_size;
  std::vector<float> logits(size_t{kBatch} * vocab);
  std::vector<double> times_us;
  for (uint32_t position = 0; position < kSteps + 1; ++position) {
    std::vector<StepSequence> sequences;
    std::vector<TokenId> tokens;
    for (uint32_t row = 0; row < kBatch; ++row) {
      sequences.push_back({batch.tables[row].tables(), position, row, 1});
      tokens.push_back(static_cast<TokenId>(row * 31 + position));
    }
    const uint64_t start_ns = MonotonicNs();
    KV_CHECK(runner.Step(sequences, tokens).has_value());
    std::vector<const float*> hidden;
    for (uint32_t row = 0; row < kBatch; ++row) hidden.push_back(runner.hidden(row).data());
    runner.Logits(hidden, logits.data());
    if (position > 0) times_us.push_back(static_cast<double>(MonotonicNs() - start_ns) / 1e3);
  }
  return MedianUs(times_us);
}

struct Way {
  const char* name;
  SamplingParams params;
  std::optional<uint32_t> logprobs;
};

std::vector<Way> Ways() {
  SamplingParams usual{.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f};
  SamplingParams penalties{.temperature = 1,
                           .repetition_penalty = 1.1f,
                           .presence_penalty = 0.5f,
                           .frequency_penalty = 0.2f};
  SamplingParams bias{.temperature = 1};
  for (TokenId id = 0; id < 300; ++id) bias.logit_bias.push_back({id * 500, -5.0f});
  return {{"greedy", {.temperature = 0}, std::nullopt},
          {"temperature", {.temperature = 1}, std::nullopt},
          {"top_p", {.temperature = 1, .top_p = 0.95f}, std::nullopt},
          {"min_p", {.temperature = 1, .min_p = 0.05f}, std::nullopt},
          {"top_k, top_p, min_p", usual, std::nullopt},
          {"penalties", penalties, std::nullopt},
          {"logit_bias", bias, std::nullopt},
          {"greedy, top_logprobs 20", {.temperature = 0}, 20u},
          {"temperature, top_logprobs 20", {.temperature = 1}, 20u}};
}

// Samples in the scheduler's way: rows handed to as many samplers as there are threads.
double SampleUs(Runner& runner, std::vector<Sampler>& samplers, const std::vector<float>* rows,
                const std::vector<TokenId>& tokens, const Way& way) {
  std::vector<double> times_us;
  std::vector<GeneratedToken> out(kBatch);
  for (uint32_t round = 0; round < kRounds; ++round) {
    std::atomic<uint32_t> next{0};
    const uint64_t start_ns = MonotonicNs();
    runner.ForEach(static_cast<uint32_t>(samplers.size()), [&](uint32_t i) {
      for (uint32_t row; (row = next++) < kBatch;) {
        const double u = DrawUniform(7, row, round);
        const auto id = samplers[i].Sample(rows[row], way.params, tokens, 100, u);
        KV_CHECK(id.has_value());
        out[row].id = *id;
        if (way.logprobs) samplers[i].Logprobs(rows[row], *way.logprobs, &out[row]);
      }
    });
    times_us.push_back(static_cast<double>(MonotonicNs() - start_ns) / 1e3);
  }
  return MedianUs(times_us);
}

int Main(const EngineOptions& options) {
  const ComputeScope compute;
  Batch batch = MakeBatch(options);
  const double step_us = StepUs(batch);
  Random random(3);
  std::vector<std::vector<float>> peaked, flat;
  for (uint32_t row = 0; row < kBatch; ++row) {
    peaked.push_back(RandomLogits(random, 2.5, 300));
    flat.push_back(RandomLogits(random, 1.0, 0));
  }
  std::vector<TokenId> tokens(2000);
  for (TokenId& id : tokens) id = static_cast<TokenId>(random.Below(kVocab));
  std::vector<Sampler> alone, all;
  alone.emplace_back(kVocab);
  for (uint32_t i = 0; i < std::min(kBatch, batch.runner->threads()); ++i) all.emplace_back(kVocab);
  const auto tell = [&](const Way& way, const char* logits,
                        const std::vector<std::vector<float>>& rows) {
    const double one_us = SampleUs(*batch.runner, alone, rows.data(), tokens, way);
    const double us = SampleUs(*batch.runner, all, rows.data(), tokens, way);
    fmt::print(
        "{{\"bench\":\"sampling\",\"weights\":\"{}\",\"way\":\"{}\",\"logits\":\"{}\",\"rows\":{},"
        "\"vocab\":{},"
        "\"one_thread_us\":{:.0f},\"threads\":{},\"us\":{:.0f},\"step_us\":{:.0f},"
        "\"share\":{:.5f},\"target\":{}}}\n",
        options.weights.value_or("bf16"), way.name, logits, kBatch, kVocab, one_us, all.size(), us,
        step_us, us / step_us, kTarget);
  };
  for (const Way& way : Ways()) {
    tell(way, "peaked", peaked);
    tell(way, "flat", flat);
  }
  return 0;
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) {
  kvasir::EngineOptions options;
  options.shape = argc > 1 ? argv[1] : "llama-1b";
  const int threads = argc > 2 ? std::atoi(argv[2]) : 0;
  if (threads > 0) options.threads = static_cast<uint32_t>(threads);
  if (argc > 3) options.weights = argv[3];
  return kvasir::Main(options);
}
