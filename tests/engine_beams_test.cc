// Beam search in the engine: hypotheses and scores are those of a search over logits that were
// computed alone, whatever else runs, is cancelled, evicted or preempted.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <thread>

#include "base/random.h"
#include "base/rounds_for_test.h"
#include "engine_scenario.h"
#include "model/translation_for_test.h"
#include "sampling/beam_search.h"

namespace kvasir {
namespace {

constexpr TokenId kBeamStart = 2, kEnd = 2;
constexpr uint32_t kVocab = 71;

EngineOptions BeamOptionsOf(uint64_t kv_memory = 4 << 20) {
  EngineOptions options = DemoOptions();
  options.model = TinyTranslator();
  options.kv_memory_bytes = kv_memory;
  options.parallel = 16;
  options.threads = 2;
  return options;
}

std::vector<TokenId> BeamSource(uint32_t size, uint64_t seed) {
  Random random(seed);
  return RandomTokens(random, size, kVocab);
}

GenerateRequest Beams(std::vector<TokenId> source, uint32_t beams, uint32_t max_tokens) {
  GenerateRequest request = Greedy({kBeamStart, 5}, max_tokens);
  request.source = std::move(source);
  request.beams = BeamParams{.beams = beams};
  request.n = beams;
  return request;
}

struct Hypothesis {
  std::vector<TokenId> tokens;  // of the answer
  float score;
  FinishReason reason;
  bool operator==(const Hypothesis&) const = default;
};

// The same search without blocks, forks or batch mates.
class Reference {
 public:
  Reference() {
    RunnerOptions plain;
    plain.max_rows = 16 * 140;
    runner_ = MakeRunner(Import(TinyTranslator()), plain);
    layout_.emplace(Runner::LayoutFor(runner_->config(), plain));
  }

  struct Found {
    std::vector<Hypothesis> best;
    std::map<std::pair<uint32_t, uint32_t>, std::vector<float>> rows;  // by beam and position
    uint64_t forks = 0;                                                // beyond one for each beam
  };

  Found Search(const GenerateRequest& r) {
    const auto forced = static_cast<uint32_t>(r.prompt.size()) - 1;
    BeamOptions options{.beams = r.beams->beams,
                        .hypotheses = r.n,
                        .length_penalty = r.beams->length_penalty,
                        .early_stopping = r.beams->early_stopping,
                        .min_tokens = r.min_tokens + forced,
                        .max_tokens = r.max_tokens + forced,
                        .no_repeat_ngram_size = r.no_repeat_ngram_size,
                        .repetition_penalty = r.sampling.repetition_penalty,
                        .start = r.prompt[0],
                        .forced = std::nullopt,
                        .ends = r.stop_ids};
    if (forced > 0) options.forced = r.prompt[1];
    if (!r.ignore_eos) options.ends.push_back(kEnd);
    BeamSearch search(options);
    Found found;
    std::vector<LogitRow> rows(options.beams);
    while (!search.done()) {
      const auto num = static_cast<uint32_t>(search.beams().size());
      if (search.NeedsRows()) {
        std::vector<Translation> all;
        for (uint32_t i = 0; i < num; ++i) {
          const auto tokens = search.tokens(i);
          all.push_back({r.source, {tokens.begin(), tokens.end()}});
        }
        const std::vector<Rows> logits = TranslateAll(*runner_, *layout_, all, 512);
        for (uint32_t i = 0; i < num; ++i) {
          auto& row = found.rows[{i, search.length()}];
          row.assign(logits[i].back().begin(), logits[i].back().end());
          EXPECT_TRUE(rows[i].Read(row, ExpSumFor(BestTarget())));
        }
      }
      search.Advance(std::span(rows).first(search.NeedsRows() ? num : 0));
      std::vector<bool> seen(num);
      for (const auto& beam : search.beams()) {
        found.forks += seen[beam.parent];
        seen[beam.parent] = true;
      }
    }
    for (const auto& one : search.best()) {
      const auto tokens = one.tokens.subspan(r.prompt.size());
      found.best.push_back({{tokens.begin(), tokens.end()},
                            one.score,
                            one.ended ? FinishReason::kStop : FinishReason::kLength});
    }
    return found;
  }

 private:
  std::unique_ptr<Runner> runner_;
  std::optional<KvLayout> layout_;
};

std::vector<Hypothesis> HypothesesOf(const Answer& answer) {
  std::vector<Hypothesis> all;
  for (const Answer::Choice& choice : answer.choices) {
    if (!choice.score) continue;  // the search found fewer
    all.push_back({choice.tokens, *choice.score, choice.finish_reason});
  }
  return all;
}

TEST(EngineBeams, HypothesesAreThoseOfTheReference) {
  const auto engine = LoadEngine(BeamOptionsOf());
  Reference reference;
  for (const uint32_t beams : {2u, 5u, 16u}) {
    for (const auto stopping :
         {EarlyStopping::kFalse, EarlyStopping::kTrue, EarlyStopping::kNever}) {
      for (const float penalty : {0.5f, 1.0f, 2.0f, -1.0f}) {
        GenerateRequest request = Beams(BeamSource(20, beams), beams, 12);
        request.beams->early_stopping = stopping;
        request.beams->length_penalty = penalty;
        const auto expected = reference.Search(request).best;
        for (const uint32_t reused : {0u, 20u}) {
          const Answer answer = Ask(*engine, request);
          ASSERT_FALSE(answer.error) << answer.error->message;
          EXPECT_EQ(HypothesesOf(answer), expected) << beams << " beams, penalty " << penalty;
          if (reused > 0) {
            EXPECT_EQ(answer.receipt.source_reused, reused);
          }
          uint32_t tokens = 0;
          for (const Hypothesis& one : expected) tokens += static_cast<uint32_t>(one.tokens.size());
          EXPECT_EQ(answer.completion_tokens, tokens);
        }
      }
    }
  }
  EXPECT_EQ(engine->Stats().pinned_blocks, 0u);
  EXPECT_EQ(engine->Stats().hypotheses, 0u);
  engine->CheckInvariants();
}

TEST(EngineBeams, OnlyAForkThatIsWrittenCopiesATail) {
  const auto engine = LoadEngine(BeamOptionsOf());
  Reference reference;
  GenerateRequest request = Beams(BeamSource(30, 3), 6, 60);
  request.ignore_eos = true;
  const auto found = reference.Search(request);
  EXPECT_EQ(HypothesesOf(Ask(*engine, request)), found.best);
  const uint64_t copied = engine->Stats().copied_blocks;
  EXPECT_GT(copied, 0u);
  EXPECT_LE(copied, found.forks + 1) << "one more: the tail of the prompt that the index has";
}

// Limits that leave few tokens, so that fewer beams go on for a while.
TEST(EngineBeams, GoOnWithFewerBeamsAndWithMoreAgain) {
  const auto engine = LoadEngine(BeamOptionsOf());
  Reference reference;
  for (uint32_t seed = 0; seed < Rounds(8u, 2u); ++seed) {
    GenerateRequest request = Beams(BeamSource(9, seed), 16, 120);
    request.no_repeat_ngram_size = 1;  // the 71 tokens are used up
    request.min_tokens = seed * 10;
    const auto found = reference.Search(request);
    EXPECT_EQ(HypothesesOf(Ask(*engine, request)), found.best) << seed;
  }
  EXPECT_EQ(engine->Stats().pinned_blocks, 0u);
  engine->CheckInvariants();
}

TEST(EngineBeams, MinTokensAndRepeatsBindGreedyAnswersToo) {
  const auto engine = LoadEngine(BeamOptionsOf());
  GenerateRequest request = Beams(BeamSource(12, 4), 2, 40);
  request.beams.reset();
  request.n = 1;
  request.no_repeat_ngram_size = 2;
  request.min_tokens = 40;
  const Answer answer = Ask(*engine, request);
  const auto& tokens = answer.choices[0].tokens;
  ASSERT_EQ(tokens.size(), 40u);
  EXPECT_EQ(std::ranges::count(tokens, kEnd), 0);
  std::set<std::pair<TokenId, TokenId>> pairs;
  for (size_t i = 1; i < tokens.size(); ++i) {
    EXPECT_TRUE(pairs.insert({tokens[i - 1], tokens[i]}).second) << "at " << i;
  }
}

TEST(EngineBeams, RefusesWhatCannotBe) {
  const auto engine = LoadEngine(BeamOptionsOf());
  const auto refused = [&](auto&& change) {
    GenerateRequest request = Beams(BeamSource(5, 1), 4, 10);
    change(request);
    const Pending pending(*engine, std::move(request));
    return pending.refused() ? pending.refused()->field.value_or("none") : "accepted";
  };
  EXPECT_EQ(refused([](GenerateRequest&) {}), "accepted");
  EXPECT_EQ(refused([](GenerateRequest& r) { r.beams->beams = 0; }), "beams");
  EXPECT_EQ(refused([](GenerateRequest& r) { r.beams->beams = 1; }), "beams");
  EXPECT_EQ(refused([](GenerateRequest& r) { r.beams->beams = 17; }), "beams");
  EXPECT_EQ(refused([](GenerateRequest& r) { r.n = 5; }), "n");
  EXPECT_EQ(refused([](GenerateRequest& r) { r.beams->length_penalty = NAN; }), "length_penalty");
  EXPECT_EQ(refused([](GenerateRequest& r) { r.min_tokens = 11; }), "min_tokens");
  EXPECT_EQ(refused([](GenerateRequest& r) { r.prompt.push_back(3); }), "prompt");
  EXPECT_EQ(refused([](GenerateRequest& r) { r.max_tokens = 0; }), "max_tokens");
  EXPECT_EQ(refused([](GenerateRequest& r) { r.logprobs = 1; }), "logprobs");
  EngineOptions few = BeamOptionsOf();
  few.parallel = 3;
  const Pending pending(*LoadEngine(few), Beams(BeamSource(5, 1), 4, 10));
  ASSERT_TRUE(pending.refused());
  EXPECT_EQ(pending.refused()->field, "beams");
  GenerateRequest plain = Greedy({1, 2}, 4);
  plain.beams.emplace();
  const Pending no_encoder(*LoadEngine(TinyOptions()), plain);
  ASSERT_TRUE(no_encoder.refused());
  EXPECT_EQ(no_encoder.refused()->field, "beams");
}

TEST(EngineBeams, PastItsDeadlineARequestGivesWhatItHas) {
  const auto engine = LoadEngine(BeamOptionsOf());
  GenerateRequest request = Beams(BeamSource(20, 2), 3, 200);
  request.ignore_eos = true;
  request.timeout_ms = 1;
  bool seen = false;
  for (uint64_t timeout = 1; timeout < 4000 && !seen; timeout *= 2) {
    request.timeout_ms = timeout;
    const Answer answer = Ask(*engine, request);
    if (answer.error) {
      EXPECT_EQ(answer.error->code, Code::kDeadlineExceeded);
      continue;
    }
    seen = answer.choices[0].stop_match == "deadline";
    if (!seen) break;
    EXPECT_GT(answer.choices[0].tokens.size(), 0u);
    EXPECT_LT(answer.choices[0].tokens.size(), 200u);
    EXPECT_TRUE(answer.choices[0].score);
    EXPECT_EQ(answer.choices[0].finish_reason, FinishReason::kLength);
  }
  EXPECT_EQ(engine->Stats().pinned_blocks, 0u);
  engine->CheckInvariants();
}

uint64_t Preemptions(const EngineStats& stats) {
  uint64_t sum = 0;
  for (const uint64_t one : stats.preemptions) sum += one;
  return sum;
}

// Another search takes its place: its beams are computed again, each by itself.
TEST(EngineBeams, APreemptedSearchGoesOnWithTheSameBits) {
  EngineOptions options = BeamOptionsOf();
  options.parallel = 8;
  const auto engine = LoadEngine(options);
  Reference reference;
  for (uint32_t at : {1u, 2u, 15u, 16u, 17u, 40u}) {
    GenerateRequest slow = Beams(BeamSource(40, at), 6, 60);
    slow.ignore_eos = true;
    slow.priority = 5;
    GenerateRequest urgent = Beams(BeamSource(30, at + 100), 4, 10);
    std::promise<void> reached, submitted;
    std::map<std::pair<uint32_t, uint32_t>, std::vector<float>> rows;
    slow.on_logits = [&](uint32_t beam, uint32_t position, std::span<const float> row) {
      rows[{beam, position}].assign(row.begin(), row.end());
      if (beam != 0 || position != at) return;
      reached.set_value();
      submitted.get_future().wait();  // else the search ends before the other one comes
    };
    Pending first(*engine, slow);
    reached.get_future().wait();
    Pending second(*engine, urgent);
    submitted.set_value();
    EXPECT_EQ(HypothesesOf(second.Wait()), reference.Search(urgent).best);
    const auto found = reference.Search(slow);
    EXPECT_EQ(HypothesesOf(first.Wait()), found.best);
    for (const auto& [place, row] : found.rows) EXPECT_EQ(rows[place], row) << place.second;
  }
  EXPECT_GT(Preemptions(engine->Stats()), 3u);
  EXPECT_EQ(engine->Stats().pinned_blocks, 0u);
  engine->CheckInvariants();
}

// Reservations that were made for short answers and cannot grow.
TEST(EngineBeams, ASearchThatThePoolHasNoRoomForGoesOnLater) {
  EngineOptions options = BeamOptionsOf(uint64_t{700} << 10);
  options.kv_headroom = 0;
  const auto engine = LoadEngine(options);
  Reference reference;
  for (uint32_t i = 0; i < 100; ++i) {
    GenerateRequest one = Beams(BeamSource(3, i), 2, 2);
    one.ignore_eos = true;
    Ask(*engine, one);
  }
  std::vector<GenerateRequest> requests;
  std::vector<std::unique_ptr<Pending>> all;
  for (uint32_t i = 0; i < 6; ++i) {
    requests.push_back(Beams(BeamSource(20, i), 5, 100));
    requests.back().ignore_eos = true;
    all.push_back(std::make_unique<Pending>(*engine, requests.back()));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(HypothesesOf(all[i]->Wait()), reference.Search(requests[i]).best);
  }
  EXPECT_GT(engine->Stats().preemptions[static_cast<size_t>(PreemptCause::kMemory)], 0u);
  EXPECT_EQ(engine->Stats().pinned_blocks, 0u);
  engine->CheckInvariants();
}

// Requests of all kinds at once, in pools from tiny to wide.
class BeamTwin {
 public:
  explicit BeamTwin(const EngineOptions& options) : engine_(LoadEngine(options)) {
    for (uint32_t i = 0; i < 10; ++i) {
      sources_.push_back(BeamSource(1 + static_cast<uint32_t>(random_.Below(70)), i));
    }
  }

  void Run(uint32_t waves) {
    for (uint32_t wave = 0; wave < waves; ++wave) {
      std::vector<std::unique_ptr<Seen>> all;
      for (uint64_t n = 1 + random_.Below(6); n > 0; --n) {
        all.push_back(Submit());
        if (random_.Below(4) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      for (auto& seen : all) {
        if (random_.Below(8) == 0) seen->pending->Cancel();
      }
      for (auto& seen : all) Compare(*seen);
      if (random_.Below(12) == 0) engine_->Erase("alice");
      engine_->CheckInvariants();
      EXPECT_EQ(engine_->Stats().pinned_blocks, 0u);
    }
  }

  uint64_t rows = 0, differ = 0, searches = 0, wrong = 0;
  Engine& engine() { return *engine_; }

 private:
  struct Seen {
    GenerateRequest request;
    std::map<std::pair<uint32_t, uint32_t>, std::vector<float>> rows;
    std::unique_ptr<Pending> pending;
  };

  std::unique_ptr<Seen> Submit() {
    auto seen = std::make_unique<Seen>();
    GenerateRequest& r = seen->request;
    const auto beams = 2 + static_cast<uint32_t>(random_.Below(6));
    r = Beams(sources_[random_.Below(sources_.size())], beams,
              1 + static_cast<uint32_t>(random_.Below(40)));
    r.prompt[1] = static_cast<TokenId>(3 + random_.Below(4));
    if (random_.Below(5) == 0) r.prompt.pop_back();
    r.n = 1 + static_cast<uint32_t>(random_.Below(beams));
    r.tenant = random_.Below(2) == 0 ? "alice" : "bob";
    r.priority = static_cast<int32_t>(random_.Below(3));
    r.ignore_eos = random_.Below(2) == 0;
    r.beams->length_penalty = static_cast<float>(random_.Below(5)) / 2;
    r.beams->early_stopping = static_cast<EarlyStopping>(random_.Below(3));
    r.min_tokens = static_cast<uint32_t>(random_.Below(2) * random_.Below(r.max_tokens + 1));
    r.no_repeat_ngram_size = static_cast<uint32_t>(random_.Below(4));
    if (random_.Below(3) == 0) r.sampling.repetition_penalty = 1.2f;
    if (random_.Below(4) == 0) {  // a greedy one among them
      r.beams.reset();
      r.n = 1;
    }
    r.reuse = random_.Below(6) == 0 ? Reuse::kNothing : Reuse::kAll;
    Seen* to = seen.get();
    if (r.beams) {
      r.on_logits = [to](uint32_t beam, uint32_t position, std::span<const float> row) {
        to->rows[{beam, position}].assign(row.begin(), row.end());
      };
    }
    seen->pending = std::make_unique<Pending>(*engine_, r);
    return seen;
  }

  void Compare(Seen& seen) {
    const Answer& answer = seen.pending->Wait();
    EXPECT_FALSE(answer.error) << answer.error->message;
    if (!seen.request.beams) return;
    const auto found = reference_.Search(seen.request);
    ++searches;
    if (answer.choices[0].finish_reason != FinishReason::kCancelled) {
      wrong += HypothesesOf(answer) != found.best;
    }
    for (const auto& [at, row] : seen.rows) {
      const auto expected = found.rows.find(at);
      if (expected == found.rows.end()) continue;  // of the prompt
      ++rows;
      differ += expected->second != row;
    }
  }

  Random random_{4242};
  Reference reference_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::vector<TokenId>> sources_;
};

TEST(EngineBeams, NoHypothesisIsChangedByTheCacheOrByBatchMates) {
  for (const uint64_t kv_memory : {uint64_t{420} << 10, uint64_t{700} << 10, uint64_t{4} << 20}) {
    EngineOptions options = BeamOptionsOf(kv_memory);
    options.kv_headroom = 0;
    BeamTwin twin(options);
    twin.Run(Rounds(80, 12));
    const EngineStats stats = twin.engine().Stats();
    std::printf(
        "%llu blocks: searches %llu wrong %llu, rows %llu differ %llu, %llu preemptions\n",
        static_cast<unsigned long long>(twin.engine().plan().num_blocks),
        static_cast<unsigned long long>(twin.searches), static_cast<unsigned long long>(twin.wrong),
        static_cast<unsigned long long>(twin.rows), static_cast<unsigned long long>(twin.differ),
        static_cast<unsigned long long>(Preemptions(stats)));
    EXPECT_GT(twin.searches, 20u);
    EXPECT_GT(twin.rows, 500u);
    EXPECT_EQ(twin.wrong, 0u);
    EXPECT_EQ(twin.differ, 0u);
  }
}

}  // namespace
}  // namespace kvasir
