// The engine end to end: what it generates, refuses and reports.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine_scenario.h"
#include "source_paths.h"
#include "text/tokenizer.h"

namespace kvasir {
namespace {

nlohmann::json ReadJson(const std::string& path) {
  return nlohmann::json::parse(std::ifstream(path), nullptr, false);
}

TEST(Generate, SaysWhatTheGoldensSay) {
  const auto engine = LoadEngine(DemoOptions());
  const auto golden = ReadJson(KVASIR_SOURCE_DIR "/models/kvasir-demo/golden.json");
  ASSERT_FALSE(golden["prompts"].empty());
  for (const auto& prompt : golden["prompts"]) {
    const auto expected = prompt["greedy"].get<std::vector<TokenId>>();
    GenerateRequest request =
        Greedy(prompt["ids"].get<std::vector<TokenId>>(), static_cast<uint32_t>(expected.size()));
    request.ignore_eos = true;
    const Answer answer = Ask(*engine, request);
    EXPECT_EQ(answer.choices[0].tokens, expected) << prompt["name"];
    EXPECT_EQ(answer.choices[0].finish_reason, FinishReason::kLength);
    EXPECT_EQ(answer.completion_tokens, expected.size());
    request.ignore_eos = false;
    request.max_tokens = 64;
    const Answer stopped = Ask(*engine, request);
    EXPECT_TRUE(stopped.choices[0].text.starts_with(prompt["answer"].get<std::string>()))
        << prompt["name"] << ": " << stopped.choices[0].text;
    EXPECT_EQ(stopped.choices[0].finish_reason, FinishReason::kStop);
    EXPECT_EQ(stopped.receipt.computed, 0u) << "the Cursor answers an identical prompt";
  }
}

std::vector<TokenId> Ids(const Engine& engine, const std::string& text) {
  return *engine.tokenizer()->Encode(text);
}

const char kStory[] =
    "<|user|>The brass key is in the blue drawer. Where is the brass key?<|end|>"
    "<|assistant|>";

TEST(Generate, SameSeedSameTextAloneAndInABatch) {
  const auto engine = LoadEngine(DemoOptions());
  GenerateRequest request = Greedy(Ids(*engine, kStory), 40);
  request.sampling.temperature = 1.5f;
  request.sampling.seed = 42;
  request.ignore_eos = true;
  request.n = 3;
  const Answer alone = Ask(*engine, request);
  EXPECT_NE(alone.choices[0].tokens, alone.choices[1].tokens);
  std::vector<std::unique_ptr<Pending>> mates;
  for (int i = 0; i < 4; ++i) {
    GenerateRequest mate = Greedy(Ids(*engine, "Mate " + std::to_string(i)), 30 + 3 * i);
    mate.sampling.temperature = 1;
    mates.push_back(std::make_unique<Pending>(*engine, mate));
  }
  const Answer in_batch = Ask(*engine, request);
  for (int choice = 0; choice < 3; ++choice) {
    EXPECT_EQ(in_batch.choices[choice].tokens, alone.choices[choice].tokens);
    EXPECT_EQ(in_batch.choices[choice].text, alone.choices[choice].text);
  }
  request.sampling.seed = 43;
  EXPECT_NE(Ask(*engine, request).choices[0].tokens, alone.choices[0].tokens);
  for (auto& mate : mates) mate->Wait();
}

TEST(Generate, EveryCacheModeSaysTheSame) {
  std::vector<TokenId> expected;
  for (const CacheMode mode : {CacheMode::kPrefix, CacheMode::kSequence, CacheMode::kNone}) {
    EngineOptions options = DemoOptions();
    options.cache_mode = mode;
    options.step_tokens = 16;
    const auto engine = LoadEngine(options);
    GenerateRequest request = Greedy(Ids(*engine, kStory), 12);
    request.sampling.temperature = 0.8f;
    request.sampling.seed = 1;
    request.ignore_eos = true;
    request.n = 2;
    for (int repeat = 0; repeat < 2; ++repeat) {
      const Answer answer = Ask(*engine, request);
      if (expected.empty()) expected = answer.choices[1].tokens;
      EXPECT_EQ(answer.choices[1].tokens, expected);
      EXPECT_EQ(answer.choices[1].tokens.size(), 12u);
      if (mode == CacheMode::kPrefix) continue;
      EXPECT_EQ(answer.receipt.cached_tokens(), 0u);
      ASSERT_TRUE(answer.receipt.miss);
      EXPECT_EQ(answer.receipt.miss->reason, MissReason::kDisabled);
    }
    EXPECT_EQ(engine->Stats().pinned_blocks, 0u);
    EXPECT_EQ(engine->Stats().idle_blocks > 0, mode == CacheMode::kPrefix);
  }
}

TEST(Generate, EveryEvictionPolicySaysTheSame) {
  std::vector<std::vector<TokenId>> expected;
  for (const char* eviction : {"lru", "s3fifo"}) {
    SCOPED_TRACE(eviction);
    EngineOptions options = TinyOptions();
    options.eviction = eviction;
    options.ctx_size = 128;
    options.kv_memory_bytes = 256 << 10;
    const auto engine = LoadEngine(options);
    EXPECT_EQ(engine->plan().eviction, eviction);
    std::vector<std::vector<TokenId>> answers;
    for (TokenId i = 0; i < 60; ++i) {  // a pool of a few prompts, which are repeated
      GenerateRequest request = Greedy({}, 4);
      for (TokenId t = 0; t < 80; ++t) {
        request.prompt.push_back(1 + (t < 20 ? t : t + i * 7 % 19) % 100);
      }
      request.ignore_eos = true;
      answers.push_back(Ask(*engine, request).choices[0].tokens);
    }
    EXPECT_GT(engine->Stats().evicted_blocks, 0u);
    EXPECT_GT(engine->Stats().reused_pool, 0u);
    engine->CheckInvariants();
    if (expected.empty()) expected = answers;
    EXPECT_EQ(answers, expected);
  }
  EngineOptions options = TinyOptions();
  options.eviction = "mru";
  const auto refused = Engine::PlanMemory(options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_EQ(refused.error().message, "unknown policy 'mru' (known: lru, s3fifo)");
}

TEST(Generate, StopsAtStringsIdsAndLength) {
  const auto engine = LoadEngine(DemoOptions());
  GenerateRequest request = Greedy(Ids(*engine, kStory), 64);
  const Answer whole = Ask(*engine, request);
  const std::string& text = whole.choices[0].text;
  ASSERT_GT(text.size(), 20u);
  EXPECT_EQ(whole.choices[0].finish_reason, FinishReason::kStop);
  EXPECT_FALSE(whole.choices[0].stop_match);

  request.stop = {"nowhere", text.substr(9, 6)};
  const Answer stopped = Ask(*engine, request);
  EXPECT_EQ(stopped.choices[0].text, text.substr(0, text.find(request.stop[1])));
  EXPECT_EQ(stopped.choices[0].stop_match, request.stop[1]);
  EXPECT_EQ(stopped.choices[0].finish_reason, FinishReason::kStop);
  std::string pieces;
  for (const GeneratedToken& token : stopped.choices[0].pieces) pieces += token.text;
  EXPECT_TRUE(pieces.starts_with(stopped.choices[0].text + request.stop[1]));

  request.stop.clear();
  request.stop_ids = {whole.choices[0].tokens[3]};
  const Answer by_id = Ask(*engine, request);
  const auto& ids = whole.choices[0].tokens;
  const auto first = std::find(ids.begin(), ids.end(), ids[3]) - ids.begin();
  EXPECT_EQ(by_id.choices[0].tokens.size(), static_cast<size_t>(first) + 1);
  EXPECT_EQ(by_id.choices[0].finish_reason, FinishReason::kStop);

  request.stop_ids.clear();
  request.max_tokens = 0;
  request.n = 2;
  const Answer none = Ask(*engine, request);
  EXPECT_EQ(none.completion_tokens, 0u);
  EXPECT_EQ(none.choices[1].finish_reason, FinishReason::kLength);
}

TEST(Generate, LogprobsAreOfTheModelsDistribution) {
  const auto engine = LoadEngine(DemoOptions());
  GenerateRequest request = Greedy(Ids(*engine, kStory), 5);
  request.logprobs = 3;
  const Answer answer = Ask(*engine, request);
  for (const GeneratedToken& token : answer.choices[0].pieces) {
    ASSERT_EQ(token.top.size(), 3u);
    EXPECT_EQ(token.top[0].id, token.id) << "greedy takes the best";
    EXPECT_EQ(token.top[0].logprob, token.logprob);
    EXPECT_GE(token.top[0].logprob, token.top[1].logprob);
    EXPECT_LE(token.top[0].logprob, 0.0f);
  }
}

TEST(Generate, ReceiptsTellWhatWasReusedAndWhyNot) {
  const auto engine = LoadEngine(DemoOptions());
  std::vector<TokenId> prompt = Ids(*engine,
                                    "a b c d e f g h i j k l m n o p q r s t u v w x y z "
                                    "a b c d e f g h i j k l m n o p q r s t u v w x y z");
  ASSERT_GT(prompt.size(), 40u);
  const auto size = static_cast<uint32_t>(prompt.size());
  const Answer cold = Ask(*engine, Greedy(prompt, 2));
  EXPECT_EQ(cold.receipt.computed, size);
  ASSERT_TRUE(cold.receipt.miss);
  EXPECT_EQ(cold.receipt.miss->reason, MissReason::kCold);
  EXPECT_EQ(cold.receipt.saved_ms, 0);
  EXPECT_GT(cold.receipt.ttft_ms, 0);

  const Answer same = Ask(*engine, Greedy(prompt, 2));
  EXPECT_EQ(same.receipt.computed, 0u);
  EXPECT_EQ(same.choices[0].tokens, cold.choices[0].tokens);
  EXPECT_GT(same.receipt.saved_ms, 0);
  GenerateRequest no_cursor = Greedy(prompt, 2);
  no_cursor.reuse = Reuse::kBlocks;
  EXPECT_EQ(Ask(*engine, no_cursor).receipt.computed, 1u);
  GenerateRequest no_cache = Greedy(prompt, 2);
  no_cache.reuse = Reuse::kNothing;
  EXPECT_EQ(Ask(*engine, no_cache).receipt.computed, size);

  prompt[20] ^= 1;
  GenerateRequest other = Greedy(prompt, 2);
  other.message_ends = {10, 30, size};
  const Answer diverged = Ask(*engine, other);
  EXPECT_EQ(diverged.receipt.cached_tokens(), 20u);
  EXPECT_EQ(diverged.receipt.reused_pool, 16u);
  EXPECT_EQ(diverged.receipt.reused_partial, 4u);
  ASSERT_TRUE(diverged.receipt.miss);
  EXPECT_EQ(diverged.receipt.miss->reason, MissReason::kDiverged);
  EXPECT_EQ(diverged.receipt.miss->at_token, 20u);
  EXPECT_EQ(diverged.receipt.miss->message_index, 1u);

  other.tenant = "somebody else";
  EXPECT_EQ(Ask(*engine, other).receipt.miss->reason, MissReason::kCold);
  other.tenant = "default";
  engine->Erase("default");
  EXPECT_EQ(Ask(*engine, other).receipt.cached_tokens(), 0u);
}

TEST(Generate, AnErasureWaitsForNobodyAndTellsWhatItTook) {
  const auto engine = LoadEngine(DemoOptions());
  const std::vector<TokenId> prompt(100, 5);
  Ask(*engine, Greedy(prompt, 1));
  // Called from the engine's thread, where a wait would never end.
  std::promise<Erasure> first, second;
  GenerateRequest request = Greedy({7, 8}, 1);
  ASSERT_TRUE(engine->Submit(std::move(request), [&](const Event& event) {
    if (!event.last) return;
    engine->Erase("default", [&](const Erasure& erasure) {
      first.set_value(erasure);
      engine->Erase("default", [&](const Erasure& again) { second.set_value(again); });
    });
  }));
  const Erasure erased = first.get_future().get();
  EXPECT_EQ(erased.tokens, 102u);
  EXPECT_EQ(erased.blocks, 8u);
  EXPECT_EQ(erased.cursors, 2u);
  EXPECT_EQ(second.get_future().get().tokens, 0u);
  EXPECT_EQ(Ask(*engine, Greedy(prompt, 1)).receipt.cached_tokens(), 0u);
  engine->CheckInvariants();
  // An erasure requested before the engine stops calls its sink before the engine has stopped.
  std::promise<void> last;
  engine->Erase("default", [&](const Erasure&) { last.set_value(); });
  engine->Drain();
  EXPECT_EQ(last.get_future().wait_for(std::chrono::seconds(0)), std::future_status::ready);
}

TEST(Generate, AForgetTakesThePromptFromABlockOnAndKeepsWhatIsKept) {
  const auto engine = LoadEngine(DemoOptions());
  std::vector<TokenId> prompt(100);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>(5 + i);
  const auto tokens = Ask(*engine, Greedy(prompt, 1)).choices[0].tokens;
  const auto forget = [&](uint32_t first, std::vector<std::vector<TokenId>> kept) {
    std::promise<Erasure> told;
    engine->Forget({.owner = "default",
                    .cache_salt = {},
                    .ids = prompt,
                    .first = first,
                    .last = first,
                    .kept = std::move(kept)},
                   [&](const Erasure& erasure) { told.set_value(erasure); });
    return told.get_future().get();
  };
  const Erasure most = forget(50, {{prompt.begin(), prompt.begin() + 70}});
  EXPECT_EQ(most.kept_shared, 1u);  // tokens 48 to 63
  EXPECT_EQ(most.tokens, 36u);
  EXPECT_EQ(most.blocks, 3u);
  EXPECT_EQ(most.cursors, 1u);
  EXPECT_FALSE(most.error);
  engine->CheckInvariants();
  EXPECT_EQ(Ask(*engine, Greedy(prompt, 1)).receipt.cached_tokens(), 64u);
  forget(50, {});
  const Answer again = Ask(*engine, Greedy(prompt, 1));
  EXPECT_EQ(again.receipt.cached_tokens(), 48u);
  EXPECT_EQ(again.choices[0].tokens, tokens);
  forget(0, {});
  EXPECT_EQ(Ask(*engine, Greedy(prompt, 1)).receipt.cached_tokens(), 0u);
  engine->CheckInvariants();
}

TEST(Generate, RefusesWhatCanNeverRunAndSaysWhy) {
  EngineOptions options = DemoOptions();
  options.ctx_size = 100;
  options.parallel = 2;
  options.max_queued = 1;
  const auto engine = LoadEngine(options);
  const auto refuses = [&](const GenerateRequest& request, const char* words) {
    const Pending pending(*engine, request);
    ASSERT_TRUE(pending.refused()) << words;
    EXPECT_EQ(pending.refused()->code, Code::kInvalidArgument);
    EXPECT_NE(pending.refused()->text().find(words), std::string::npos)
        << pending.refused()->text();
    EXPECT_TRUE(pending.refused()->field) << words;
  };
  const std::vector<TokenId> ok = {1, 2, 3};
  refuses(Greedy({}, 1), "prompt");
  refuses(Greedy({1024}, 1), "vocabulary");
  refuses(Greedy({-1}, 1), "vocabulary");
  refuses(Greedy(std::vector<TokenId>(100, 5), 1), "100 tokens");
  GenerateRequest request = Greedy(ok, 1);
  request.n = 0;
  refuses(request, "n:");
  request.n = 3;
  refuses(request, "n:");
  request = Greedy(ok, 1);
  request.logprobs = 21;
  refuses(request, "top_logprobs");
  request = Greedy(ok, 1);
  request.stop = {""};
  refuses(request, "stop");
  request.stop = {"\xff"};
  refuses(request, "stop");
  request = Greedy(ok, 1);
  request.sampling.temperature = NAN;
  refuses(request, "temperature");
  EXPECT_EQ(Ask(*engine, Greedy(std::vector<TokenId>(100, 5), 0)).completion_tokens, 0u);
  const GenerateRequest endless = [&] {
    GenerateRequest r = Greedy(ok, std::numeric_limits<uint32_t>::max());
    r.ignore_eos = true;
    return r;
  }();
  EXPECT_EQ(Ask(*engine, endless).completion_tokens, 97u) << "clipped to the room left";
}

TEST(Generate, RefusesOptionsThatAreNotThere) {
  const auto fails = [](EngineOptions options, Code code, const char* words,
                        std::optional<std::string> field = {}) {
    for (const Result<void>& result : {Status(Engine::Load(options).map([](auto&&) {})),
                                       Status(Engine::PlanMemory(options).map([](auto&&) {}))}) {
      ASSERT_FALSE(result) << words;
      EXPECT_EQ(result.error().code, code) << result.error().message;
      EXPECT_NE(result.error().message.find(words), std::string::npos) << result.error().message;
      EXPECT_EQ(result.error().field, field) << result.error().message;
    }
  };
  EngineOptions options = DemoOptions();
  options.weights = "q3_k";
  fails(options, Code::kInvalidArgument, "q3_k", "weights");
  options = DemoOptions();
  options.kv_format = "int3";
  fails(options, Code::kInvalidArgument, "unknown KV format 'int3'", "kv_format");
  options.kv_format = "k=int8,k=f16";
  fails(options, Code::kInvalidArgument, "k=int8,v=f16", "kv_format");
  options = DemoOptions();
  options.kv_skip_layers = {0, 4};
  fails(options, Code::kInvalidArgument, "layers are 0 to 3", "kv_skip_layers");
  options = DemoOptions();
  options.model = "/nowhere/at/all";
  fails(options, Code::kNotFound, "/nowhere/at/all", "model");
  options = DemoOptions();
  options.kv_memory_bytes = 1000;
  fails(options, Code::kInvalidArgument, "1000 bytes are too few", "kv_memory");
  options = DemoOptions();
  options.ctx_size = 4096;
  fails(options, Code::kInvalidArgument, "2048", "ctx_size");
  options = DemoOptions();
  options.ctx_size = 0;
  fails(options, Code::kInvalidArgument, "0 tokens", "ctx_size");
  options = DemoOptions();
  options.threads = 0;
  fails(options, Code::kInvalidArgument, "0 is not in [1, 1024]", "threads");
  options = DemoOptions();
  options.block_tokens = 20;
  fails(options, Code::kInvalidArgument, "20 is not a multiple of 16", "block_tokens");
  options = DemoOptions();
  options.target = "mmx";
  fails(options, Code::kInvalidArgument, "mmx", "target");
  options = DemoOptions();
  options.parallel = 0;
  fails(options, Code::kInvalidArgument, "0 is not in [1, 4096]", "parallel");
  for (const uint32_t tenants : {0u, 70'000u}) {
    options = DemoOptions();
    options.max_tenants = tenants;
    fails(options, Code::kInvalidArgument, "is not in [1, 16384]", "max_tenants");
  }
  for (const double headroom : {2.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    options = DemoOptions();
    options.kv_headroom = headroom;
    fails(options, Code::kInvalidArgument, "is not in [0, 0.5]", "kv_headroom");
  }
  options = DemoOptions();
  options.max_queue_ms = 0;
  fails(options, Code::kInvalidArgument, "0 is not in [1, 86400000]", "max_queue_ms");
  options = DemoOptions();
  options.target_itl_ms = 4'000'000;
  fails(options, Code::kInvalidArgument, "4000000 is not in [0, 3600000]", "target_itl_ms");
  options = DemoOptions();
  options.max_queued = 0;
  EXPECT_TRUE(Engine::PlanMemory(options)) << "as --max-queued 0: no request waits";
}

TEST(Generate, ASecretThatOthersMayReadIsRefusedAndAFolderThatCannotBeIsNot) {
  namespace fs = std::filesystem;
  EngineOptions options = TinyOptions();
  options.state_dir = ScratchDir() / "exposed";
  fs::create_directories(*options.state_dir);
  std::ofstream(*options.state_dir + "/secret") << std::string(32, 'x');
  fs::permissions(*options.state_dir + "/secret", fs::perms(0644));
  const auto exposed = Engine::Load(options);
  ASSERT_FALSE(exposed);
  EXPECT_EQ(exposed.error().code, Code::kPermissionDenied);
  EXPECT_NE(exposed.error().message.find("chmod 600"), std::string::npos);
  *options.state_dir += "/secret/below a file";
  EXPECT_TRUE(Engine::Load(options)) << "a secret of this process will do";
}

}  // namespace
}  // namespace kvasir
