// Forgets beside rows that run.
#include <future>
#include <set>
#include <utility>
#include <vector>

#include "engine_scenario.h"

namespace kvasir {
namespace {

TEST(EngineForget, AtMostOneComesBetweenTwoTokensAndLaterCallsComeBehindIt) {
  const auto engine = LoadEngine(DemoOptions());
  constexpr size_t kForgets = 5;
  std::vector<size_t> tokens_before;  // of each forget; on the engine's thread
  std::promise<void> ended, listed;
  size_t tokens = 0, before_list = 0;
  GenerateRequest request = Greedy({7, 8, 9}, 40);
  request.ignore_eos = true;
  ASSERT_TRUE(engine->Submit(std::move(request), [&](const Event& event) {
    tokens += event.tokens.size();
    if (event.last) return ended.set_value();
    if (tokens != 1 || event.tokens.empty()) return;
    for (size_t i = 0; i < kForgets; ++i) {
      const auto first = static_cast<TokenId>(100 + i);
      engine->Forget({.owner = "default", .ids = {first, 5, 6}, .first = 0, .last = 2},
                     [&](const Erasure&) { tokens_before.push_back(tokens); });
    }
    engine->ListSequences({}, [&](const auto&) {
      before_list = tokens_before.size();
      listed.set_value();
    });
  }));
  ended.get_future().wait();
  listed.get_future().wait();
  engine->CheckInvariants();
  ASSERT_EQ(tokens_before.size(), kForgets);
  EXPECT_EQ(std::set<size_t>(tokens_before.begin(), tokens_before.end()).size(), kForgets);
  EXPECT_LE(tokens_before.back(), kForgets + 2) << "each step of a row has one";
  EXPECT_GE(before_list, kForgets - 1) << "a command does not overtake the forgets before it";
}

TEST(EngineForget, AllAreDoneWhenTheEngineStops) {
  constexpr size_t kForgets = 5;
  size_t done = 0;
  {
    const auto engine = LoadEngine(DemoOptions());
    std::promise<void> posted;
    GenerateRequest request = Greedy({7, 8, 9}, 1000);
    request.ignore_eos = true;
    ASSERT_TRUE(engine->Submit(std::move(request), [&, is_posted = false](const Event&) mutable {
      if (std::exchange(is_posted, true)) return;
      for (size_t i = 0; i < kForgets; ++i) {
        engine->Forget({.owner = "default", .ids = {5, 6}, .first = 0, .last = 1},
                       [&](const Erasure&) { ++done; });
      }
      posted.set_value();
    }));
    posted.get_future().wait();
  }
  EXPECT_EQ(done, kForgets);
}

}  // namespace
}  // namespace kvasir
