// Contract C2 with a hostile caller: flush-to-zero, denormals-are-zero and rounding modes of the
// threads that load, submit and wait do not change any bit that the engine computes, and the engine
// does not change them. Threads inherit these modes from the thread that starts them.
#include <gtest/gtest.h>

#include <cfenv>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "engine_scenario.h"
#include "kvasir/machine.h"
#include "tensor/same_bits_for_test.h"

namespace kvasir {
namespace {

struct Environment {
  const char* name;
  std::function<void()> enter;
  std::function<bool()> holds;  // tested by arithmetic, not by reading a register
};

// Divides 1 by 3, volatile, so that the processor computes and not the compiler.
bool RoundsOneThirdTo(bool up) {
  volatile float one = 1, three = 3;
  const float nearest = 0x1.555556p-2f, below = 0x1.555554p-2f;
  return one / three == (up ? nearest : below);
}

std::vector<Environment> Environments() {
  std::vector<Environment> all = {
      {"up", [] { std::fesetround(FE_UPWARD); },
       [] {
         volatile float one = 1, tiny = 1e-30f;
         return one + tiny > 1;
       }},
      {"down", [] { std::fesetround(FE_DOWNWARD); }, [] { return RoundsOneThirdTo(false); }},
      {"to zero", [] { std::fesetround(FE_TOWARDZERO); }, [] { return RoundsOneThirdTo(false); }}};
#if defined(__x86_64__)
  constexpr unsigned kFlushToZero = 1u << 15, kDenormalsAreZero = 1u << 6;
  all.push_back({"FTZ", [] { _mm_setcsr(_mm_getcsr() | kFlushToZero); },
                 [] {
                   volatile float tiny = 0x1p-126f, half = 0.5f;
                   return tiny * half == 0;
                 }});
  all.push_back({"DAZ", [] { _mm_setcsr(_mm_getcsr() | kDenormalsAreZero); },
                 [] {
                   volatile float denormal = 0x1p-127f, two = 2;
                   return denormal * two == 0;
                 }});
  all.push_back({"FTZ, DAZ and up",
                 [] {
                   _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
                   std::fesetround(FE_UPWARD);
                 },
                 [] {
                   volatile float denormal = 0x1p-127f, two = 2, one = 1, tiny = 1e-30f;
                   return denormal * two == 0 && one + tiny > 1;
                 }});
#endif
  return all;
}

struct Computed {
  std::vector<float> logits;  // of every row, in order
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
};

// Loads, runs and destroys an engine on the calling thread.
Computed Compute(const std::string& target, const char* shape) {
  EngineOptions options = *shape == '\0' ? DemoOptions() : TinyOptions();
  options.target = target;
  options.threads = 2;
  const auto engine = LoadEngine(options);
  Computed computed;
  GenerateRequest request;
  for (TokenId id = 0; id < 70; ++id) request.prompt.push_back(id * 7 % 131);
  request.max_tokens = 24;
  request.ignore_eos = true;
  request.sampling.temperature = 0.8f;
  request.sampling.top_p = 0.9f;
  request.sampling.seed = 5;
  request.logprobs = 3;
  request.on_logits = [&](uint32_t, uint32_t, std::span<const float> row) {
    computed.logits.insert(computed.logits.end(), row.begin(), row.end());
  };
  const Answer answer = Ask(*engine, request);
  EXPECT_FALSE(answer.error);
  computed.tokens = answer.choices[0].tokens;
  for (const GeneratedToken& piece : answer.choices[0].pieces) {
    computed.logprobs.push_back(piece.logprob);
    for (const TokenLogprob& top : piece.top) computed.logprobs.push_back(top.logprob);
  }
  return computed;
}

class EngineEnvironment : public testing::TestWithParam<std::string> {};

TEST_P(EngineEnvironment, OfTheCallerChangesNoBitAndStaysAsItWas) {
  for (const char* shape : {"", "tiny"}) {
    const Computed expected = Compute(GetParam(), shape);
    ASSERT_FALSE(expected.logits.empty());
    ASSERT_EQ(expected.tokens.size(), 24u);
    for (const Environment& environment : Environments()) {
      std::thread([&] {
        ASSERT_FALSE(environment.holds()) << environment.name;
        environment.enter();
        ASSERT_TRUE(environment.holds()) << environment.name;
        const Computed computed = Compute(GetParam(), shape);
        EXPECT_TRUE(environment.holds()) << environment.name << ": the caller's own is gone";
        EXPECT_TRUE(SameBits(computed.logits, expected.logits)) << environment.name;
        EXPECT_TRUE(SameBits(computed.logprobs, expected.logprobs)) << environment.name;
        EXPECT_EQ(computed.tokens, expected.tokens) << environment.name;
      }).join();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EngineEnvironment, testing::ValuesIn(SupportedTargetNames()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvasir
