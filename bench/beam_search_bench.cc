// A step of beam search beside the logits that it reads: microseconds of its parts, the median of
// 201 steps on one thread.
//
//   beam_search_bench [--beams 5] [--vocab 128112] [--target avx2]
//
// Two kinds of rows: like those of a trained model (a few tokens stand out of a bell), and flat
// ones whose blocks all could hold one of the best.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/random.h"
#include "sampling/beam_search.h"

namespace {

using kvasir::TokenId;

double MedianUs(const std::function<void()>& once) {
  std::vector<double> us;
  for (int i = 0; i < 201; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    once();
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
                     .count());
  }
  std::ranges::nth_element(us, us.begin() + 100);
  return us[100];
}

void Measure(const char* name, uint32_t beams, uint32_t vocab, float spread, int standing_out,
             kvasir::Target target) {
  kvasir::Random random(5);
  std::vector<std::vector<float>> logits(beams, std::vector<float>(vocab));
  for (auto& row : logits) {
    for (float& x : row) {
      double sum = -6;
      for (int i = 0; i < 12; ++i) sum += random.Uniform();  // near a normal distribution
      x = static_cast<float>(sum) * spread;
    }
    for (int i = 0; i < standing_out; ++i) row[random.Below(vocab)] += 10;
  }
  const kvasir::ExpSum exp_sum = kvasir::ExpSumFor(target);
  std::vector<kvasir::LogitRow> rows(beams);
  const double read = MedianUs([&] {
    for (uint32_t i = 0; i < beams; ++i) rows[i].Read(logits[i], exp_sum);
  });
  // The second step is measured: at first there is one beam.
  const kvasir::BeamOptions options{.beams = beams, .max_tokens = 32, .start = 2, .ends = {2}};
  std::vector<double> times;
  for (int i = 0; i < 201; ++i) {
    kvasir::BeamSearch search(options);
    search.Advance(std::span(rows).first(1));
    const auto begin = std::chrono::steady_clock::now();
    search.Advance(std::span(rows).first(search.beams().size()));
    times.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  std::ranges::nth_element(times, times.begin() + 100);
  const double advance = times[100];
  fmt::print("{}: {} beams, {} logits: rows {:.0f} us, best {:.0f} us, together {:.0f} us\n", name,
             beams, vocab, read, advance, read + advance);
}

}  // namespace

int main(int argc, char** argv) {
  uint32_t beams = 5, vocab = 128112;
  kvasir::Target target = kvasir::BestTarget();
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--target") == 0) {
      target = kvasir::ParseTarget(argv[i + 1]).value_or(target);
      continue;
    }
    const auto value = static_cast<uint32_t>(std::stoul(argv[i + 1]));
    if (std::strcmp(argv[i], "--beams") == 0) beams = value;
    if (std::strcmp(argv[i], "--vocab") == 0) vocab = value;
  }
  Measure("like a trained model's", beams, vocab, 2, 20, target);
  Measure("flat", beams, vocab, 0.01f, 0, target);
  return 0;
}
