// Contract C3: every byte is planned, every block comes back, a full pool makes requests wait.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <limits>
#include <thread>

#include "base/random.h"
#include "engine_scenario.h"

namespace kvasir {
namespace {

std::vector<TokenId> SomeIds(uint32_t count, uint64_t seed) {
  std::vector<TokenId> ids;
  for (uint32_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<TokenId>(DrawBits(seed, 0, i) % 131));
  }
  return ids;
}

GenerateRequest Endless(uint32_t prompt_tokens, uint32_t max_tokens, uint64_t seed) {
  GenerateRequest request;
  request.prompt = SomeIds(prompt_tokens, seed);
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  request.sampling.seed = seed;
  return request;
}

EngineOptions SmallPool(uint64_t num_blocks) {
  EngineOptions options = TinyOptions();
  const auto suffices = [&](uint64_t pages) {
    options.kv_memory_bytes = pages << 12;
    const Result<MemoryPlan> plan = Engine::PlanMemory(options);
    return plan && plan->num_blocks >= num_blocks;
  };
  uint64_t less = 0, enough = 16;
  for (; !suffices(enough); enough *= 2) less = enough;
  while (enough - less > 1) {
    const uint64_t middle = (less + enough) / 2;
    (suffices(middle) ? enough : less) = middle;
  }
  options.kv_memory_bytes = enough << 12;
  return options;
}

// A request that waits in its sink, at its first event, until it may go on.
class HeldRequest {
 public:
  // Returns when it runs.
  HeldRequest(Engine& engine, GenerateRequest request) {
    EXPECT_TRUE(engine.Submit(std::move(request), [this, first = true](const Event& event) mutable {
      if (first) {
        running_.set_value();
        may_go_on_.get_future().wait();
      }
      first = false;
      if (event.last) ended_.set_value();
    }));
    running_.get_future().wait();
  }
  void GoOn() { may_go_on_.set_value(); }
  std::future<void> ended() { return ended_.get_future(); }  // once

 private:
  std::promise<void> running_, may_go_on_, ended_;
};

TEST(Bounds, PlanIsWhatLoadAllocates) {
  // 4 layers of 2 kv heads of 32 dims, K and V; scales of 2 bytes.
  const std::pair<const char*, uint64_t> formats[] = {
      {"f32", 2048}, {"f16", 1024}, {"bf16", 1024}, {"fp8_e4m3", 544},    {"fp8_e5m2", 544},
      {"int8", 544}, {"int4", 288}, {"nf4", 288},   {"k=int8,v=f16", 784}};
  for (const auto& [format, token_bytes] : formats) {
    for (const uint64_t bytes : {uint64_t{4} << 20, uint64_t{64} << 20}) {
      EngineOptions options = DemoOptions();
      options.kv_format = format;
      options.kv_memory_bytes = bytes;
      const MemoryPlan plan = *Engine::PlanMemory(options);
      const auto engine = LoadEngine(options);  // checks plan == allocated, part by part
      EXPECT_EQ(engine->plan().total_bytes, plan.total_bytes);
      EXPECT_EQ(engine->plan().num_blocks, plan.num_blocks);
      EXPECT_LE(plan.kv_bytes + plan.index_bytes + plan.cursor_bytes, bytes);
      EXPECT_EQ(plan.kv_bytes, plan.num_blocks * plan.block_bytes);
      EXPECT_EQ(plan.total_bytes, plan.weights_bytes + plan.kv_bytes + plan.index_bytes +
                                      plan.cursor_bytes + plan.scratch_bytes + plan.request_bytes +
                                      plan.session_bytes + plan.head_bytes + plan.grammar_bytes +
                                      plan.retention_bytes);
      EXPECT_EQ(plan.kv_bytes_per_token, token_bytes);
    }
  }
}

TEST(Bounds, AFullPoolMakesRequestsWaitAndNoneFails) {
  const auto engine = LoadEngine(SmallPool(12));
  std::vector<std::unique_ptr<Pending>> all;
  for (uint32_t i = 0; i < 40; ++i) {
    GenerateRequest request = Endless(20 + i % 7 * 20, 5 + i % 30, i % 9);
    request.n = i % 5 == 0 && request.prompt.size() < 90 ? 2 : 1;
    all.push_back(std::make_unique<Pending>(*engine, request));
  }
  for (auto& pending : all) {
    const Answer& answer = pending->Wait();
    EXPECT_FALSE(answer.error);
    EXPECT_EQ(answer.choices[0].finish_reason, FinishReason::kLength);
  }
  const EngineStats stats = engine->Stats();
  EXPECT_EQ(stats.requests_finished, 40u);
  EXPECT_EQ(stats.pinned_blocks, 0u);
  EXPECT_EQ(stats.free_blocks + stats.idle_blocks, engine->plan().num_blocks);
  EXPECT_GT(stats.evicted_blocks, 0u);
  engine->CheckInvariants();

  GenerateRequest huge = Endless(600, 1, 1);
  const Pending refused(*engine, huge);
  ASSERT_TRUE(refused.refused());
  EXPECT_EQ(refused.refused()->code, Code::kInvalidArgument);
  EXPECT_NE(refused.refused()->message.find("--kv-memory"), std::string::npos);
}

TEST(Bounds, RequestsThatFillThePoolToItsLastBlockRun) {
  const auto engine = LoadEngine(SmallPool(8));
  const auto capacity = static_cast<uint32_t>(engine->plan().max_tokens);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    GenerateRequest request = Endless(1 + static_cast<uint32_t>(seed * 13 % (capacity / 2)),
                                      std::numeric_limits<uint32_t>::max(), seed % 3);
    request.n = seed % 4 == 3 ? 2 : 1;
    const Answer answer = Ask(*engine, request);
    EXPECT_FALSE(answer.error) << answer.error->message;
    EXPECT_EQ(answer.choices[0].finish_reason, FinishReason::kLength);
  }
  EXPECT_EQ(engine->Stats().pinned_blocks, 0u);
  engine->CheckInvariants();
}

// on_logits runs on the engine's thread: a Cancel from there takes effect before the next step.
TEST(Bounds, CancelAtEveryStepGivesAllBlocksBack) {
  EngineOptions options = SmallPool(40);
  options.step_tokens = 8;
  options.speculate = Speculate::kOff;
  const auto engine = LoadEngine(options);
  uint32_t cancelled = 0;
  for (uint32_t at = 0; at < 45; ++at) {
    for (const uint32_t n : {1u, 3u}) {
      GenerateRequest request = Endless(30, 12, at);
      request.reuse = at % 2 == 0 ? Reuse::kAll : Reuse::kNothing;
      request.n = n;
      std::atomic<uint64_t> id{0};
      request.on_logits = [&, calls = 0u](uint32_t, uint32_t, std::span<const float>) mutable {
        if (calls++ != at) return;
        while (id == 0) std::this_thread::yield();
        engine->Cancel(RequestId{id.load()});
      };
      std::promise<Event> last;
      uint32_t num_finished = 0;
      const auto submitted = engine->Submit(request, [&](const Event& event) {
        if (event.finish_reason != FinishReason::kNone) ++num_finished;
        if (event.last) last.set_value(event);
      });
      ASSERT_TRUE(submitted);
      id = static_cast<uint64_t>(*submitted);
      const Event event = last.get_future().get();
      cancelled += event.finish_reason == FinishReason::kCancelled ? 1 : 0;
      engine->CheckInvariants();  // without running requests no pin is left
      EXPECT_EQ(num_finished, n);
      EXPECT_EQ(engine->Stats().pinned_blocks, 0u);
      EXPECT_EQ(engine->Stats().live_tokens, 0u);
    }
  }
  EXPECT_GT(cancelled, 60u);
}

TEST(Bounds, FirstComeFirstServed) {
  EngineOptions options = SmallPool(12);
  options.parallel = 2;
  const auto engine = LoadEngine(options);
  std::vector<uint32_t> order;  // engine's thread only, until all are done
  std::vector<std::promise<void>> done(8);
  for (uint32_t i = 0; i < done.size(); ++i) {
    // Every third wants nearly the whole pool: smaller ones after it must not overtake.
    GenerateRequest request = Endless(i % 3 == 1 ? 150 : 10, 6, 100 + i);
    ASSERT_TRUE(engine->Submit(request, [&, i, first = true](const Event& event) mutable {
      if (first) order.push_back(i);
      first = false;
      if (event.last) done[i].set_value();
    }));
  }
  for (auto& promise : done) promise.get_future().wait();
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(Bounds, AFullQueueRefusesAndDrainEndsAll) {
  EngineOptions options = SmallPool(40);
  options.parallel = 1;
  options.max_queued = 2;
  const auto engine = LoadEngine(options);
  HeldRequest held(*engine, Endless(10, 400, 0));
  std::vector<std::unique_ptr<Pending>> all;
  for (uint32_t i = 1; i < 3; ++i) {
    all.push_back(std::make_unique<Pending>(*engine, Endless(10, 400, i)));
  }
  const Pending refused(*engine, Endless(10, 400, 9));
  EXPECT_TRUE(refused.refused() && refused.refused()->code == Code::kExhausted);
  std::thread first([&] { engine->Drain(); });
  for (;;) {  // until the first Drain has begun
    const Pending late(*engine, Endless(10, 1, 9));
    if (late.refused() && late.refused()->code == Code::kUnavailable) break;
    std::this_thread::yield();
  }
  held.GoOn();
  engine->Drain();  // cancels
  first.join();
  EXPECT_EQ(held.ended().wait_for(std::chrono::seconds(0)), std::future_status::ready);
  for (auto& pending : all) {
    ASSERT_TRUE(pending->done());
    EXPECT_EQ(pending->Wait().num_last, 1u);
  }
  EXPECT_EQ(all[1]->Wait().choices[0].finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(engine->Stats().pinned_blocks, 0u);
}

TEST(Bounds, AFloodLeavesOthersTheirShareOfTheQueue) {
  EngineOptions options = SmallPool(40);
  options.parallel = 1;
  options.max_queued = 7;
  const auto engine = LoadEngine(options);
  std::vector<std::unique_ptr<Pending>> all;
  const auto takes = [&](const char* tenant) {
    GenerateRequest request = Endless(10, 400, all.size());
    request.tenant = tenant;
    all.push_back(std::make_unique<Pending>(*engine, request));
    return !all.back()->refused();
  };
  HeldRequest held(*engine, Endless(10, 5, 0));
  for (int i = 0; i < 7; ++i) EXPECT_TRUE(takes("default")) << "a tenant alone may have all";
  EXPECT_FALSE(takes("quiet")) << "the queue is full";
  held.GoOn();
  held.ended().wait();
  EXPECT_FALSE(takes("default")) << "the free place is the other tenant's";
  EXPECT_TRUE(takes("quiet"));
  engine->Drain();
}

TEST(Bounds, RefusalsOfTenantsThatAreGoneCountForNobody) {
  const auto engine = LoadEngine(TinyOptions());
  ASSERT_TRUE(engine->SetTenants({{"kept", {}}, {"gone", {}}}));
  for (const char* tenant : {"kept", "gone"}) {
    GenerateRequest request = Endless(10, 1, 1);
    request.tenant = tenant;
    ASSERT_TRUE(Generate(*engine, request));
    engine->CountRejection(RejectReason::kRate, tenant);
  }
  const auto rejected = [&](std::string_view name) {
    for (const TenantStats& tenant : engine->Stats().tenants) {
      if (tenant.name == name) return tenant.rejected;
    }
    return uint64_t{99};
  };
  EXPECT_EQ(rejected("gone"), 1u);
  EXPECT_EQ(rejected(""), 0u);
  ASSERT_TRUE(engine->SetTenants({{"kept", {}}}));
  EXPECT_EQ(rejected("gone"), 0u);
  EXPECT_EQ(rejected("kept"), 1u);
  EXPECT_EQ(rejected(""), 1u);
}

TEST(Bounds, SeveralRequestsAreTakenTogetherOrNotAtAll) {
  EngineOptions options = SmallPool(40);
  options.parallel = 2;
  options.max_queued = 2;
  const auto engine = LoadEngine(options);
  const auto never = [](size_t, const Event&) { ADD_FAILURE() << "news of a refused request"; };
  const auto code = [&](std::vector<GenerateRequest> requests) {
    return engine->SubmitAll(std::move(requests), never).error().code;
  };
  GenerateRequest wrong = Endless(10, 5, 1);
  wrong.prompt.back() = -1;
  EXPECT_EQ(code({Endless(10, 5, 2), wrong}), Code::kInvalidArgument);
  EXPECT_EQ(code(std::vector(5, Endless(10, 5, 3))), Code::kInvalidArgument) << "never room for 5";
  std::vector<std::promise<void>> done(3);
  const auto ids =
      engine->SubmitAll(std::vector(3, Endless(10, 400, 4)), [&](size_t i, const Event& event) {
        if (event.last) done[i].set_value();
      });
  ASSERT_TRUE(ids);
  EXPECT_EQ(code(std::vector(2, Endless(10, 5, 5))), Code::kExhausted) << "room for one";
  for (const RequestId id : *ids) engine->Cancel(id);
  for (auto& promise : done) promise.get_future().wait();
  engine->CheckInvariants();
  EXPECT_EQ(engine->Stats().requests_cancelled, 3u);
  EXPECT_EQ(engine->Stats().requests_finished + engine->Stats().requests_failed, 0u);
}

TEST(BoundsDeathTest, WaitingForTheEngineFromASinkIsABug) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  setenv(kFolderVariable, ScratchDir().c_str(), 1);
  EXPECT_DEATH(
      {
        const auto engine = LoadEngine(SmallPool(40));
        std::promise<void> done;
        (void)engine->Submit(Endless(10, 1, 1), [&](const Event&) {
          engine->Erase("default");
          done.set_value();
        });
        done.get_future().wait();
      },
      "get_id");
  unsetenv(kFolderVariable);
}

TEST(Bounds, TheDestructorCancelsWhatRuns) {
  auto engine = LoadEngine(SmallPool(40));
  Pending running(*engine, Endless(10, 500, 1));
  Pending other(*engine, Endless(300, 100, 2));
  engine.reset();
  EXPECT_TRUE(running.done());
  EXPECT_TRUE(other.done());
}

}  // namespace
}  // namespace kvasir
