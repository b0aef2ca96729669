// Spans in an engine: the bits follow from the request alone, and equal those of a naive twin that
// computes each span in separate memory, one row at a time.
#include "simd/target.h"
#include "span_documents.h"

namespace kvasir {
namespace {

TEST(Spans, MissesHitsAndChunksHaveTheBitsOfTheTwin) {
  uint64_t compared = 0;
  for (const Documents& documents : kDocuments) {
    const GenerateRequest request = documents.Ask(30);
    const auto engine = LoadEngine(RowOptions());
    std::map<uint32_t, std::vector<float>> want;
    for (const uint32_t chunk : {512u, 1u, 7u, 64u}) {
      GenerateRequest cold = request;
      cold.reuse = Reuse::kNothing;
      cold.chunk_tokens = chunk;
      LogitRows rows;
      const Answer answer = AskWithRows(*engine, std::move(cold), rows);
      if (want.empty()) want = SpanTwinRows(request, answer);
      compared += CompareSpanRows(want, rows, 0, "chunks of " + std::to_string(chunk));
      EXPECT_EQ(rows.size(), want.size());
      EXPECT_EQ(answer.receipt.cached_tokens(), 0u);
    }
    for (const char* time : {"first", "second"}) {
      LogitRows rows;
      const Answer answer = AskWithRows(*engine, request, rows);
      compared += CompareSpanRows(want, rows, 0, time);
      ASSERT_TRUE(answer.receipt.spans);
      const SpansReceipt& spans = *answer.receipt.spans;
      EXPECT_EQ(spans.count, documents.order.size());
      uint32_t tokens = 0;
      for (const uint32_t document : documents.order) tokens += Documents::Size(document);
      EXPECT_EQ(spans.reused_tokens + spans.computed_tokens + spans.seam_tokens, tokens);
      if (time == std::string_view("first") || !spans.inexact_from) continue;
      EXPECT_EQ(spans.computed_tokens, 0u);
    }
  }
  EXPECT_GT(compared, 1500u);
}

// Other prompts have brought some of the documents, in another order.
TEST(Spans, DocumentsAreFoundInEveryOrder) {
  const Documents documents{.order = {0, 1, 2, 3}, .seam = 4, .span_head = 1};
  const auto engine = LoadEngine(RowOptions());
  LogitRows unused;
  Documents before = documents;
  before.order = {3, 1};
  AskWithRows(*engine, before.Ask(3), unused);
  const GenerateRequest request = documents.Ask(20);
  for (const char* time : {"half", "whole"}) {
    LogitRows rows;
    const Answer answer = AskWithRows(*engine, request, rows);
    const auto want = SpanTwinRows(request, answer);
    EXPECT_GT(CompareSpanRows(want, rows, 0, time), 30u);
    const SpansReceipt& spans = *answer.receipt.spans;
    const bool is_half = time == std::string_view("half");
    EXPECT_EQ(spans.computed_tokens, is_half ? Documents::Size(0) + Documents::Size(2) - 8 : 0u);
    EXPECT_EQ(spans.seam_tokens, 16u);
    EXPECT_EQ(spans.inexact_from, 21u);
  }
  // Another system prompt, and a part of a document that was read whole.
  Documents other = documents;
  other.head_tokens = 40;
  other.order = {3, 1};
  GenerateRequest cut = other.Ask(9);
  cut.spans->spans[1].end -= 11;
  LogitRows rows;
  const Answer answer = AskWithRows(*engine, cut, rows);
  CompareSpanRows(SpanTwinRows(cut, answer), rows, 0, "cut");
  EXPECT_EQ(answer.receipt.spans->computed_tokens, 0u);
}

// No request finds what comes after the first span that is read elsewhere.
TEST(Spans, NothingInexactIsFound) {
  const Documents documents{.order = {0, 1}, .seam = 8, .span_head = 1};
  const GenerateRequest request = documents.Ask(12);
  const auto engine = LoadEngine(RowOptions());
  LogitRows rows;
  const Answer answer = AskWithRows(*engine, request, rows);
  GenerateRequest exact = request;
  exact.spans.reset();
  LogitRows exact_rows, alone_rows;
  const Answer all = AskWithRows(*engine, exact, exact_rows);
  EXPECT_EQ(all.receipt.cached_tokens(), documents.head_tokens);
  EXPECT_FALSE(all.receipt.spans);
  const auto alone = LoadEngine(RowOptions());
  AskWithRows(*alone, exact, alone_rows);
  const std::pair<uint32_t, uint32_t> last{0, static_cast<uint32_t>(request.prompt.size()) - 1};
  EXPECT_TRUE(SameBits(exact_rows.at(last), alone_rows.at(last)));
  EXPECT_FALSE(SameBits(exact_rows.at(last), rows.at(last)));
  // And what the exact prompt has left is not taken for spans.
  LogitRows again;
  const Answer second = AskWithRows(*engine, request, again);
  CompareSpanRows(SpanTwinRows(request, second), again, 0, "again");
  EXPECT_EQ(second.choices[0].tokens, answer.choices[0].tokens);
}

TEST(Spans, ChoicesAndMatesChangeNoBit) {
  for (const uint32_t blocks : {30u, 45u, 70u}) {
    const auto engine = LoadEngine(RowOptionsWithBlocks(blocks));
    std::vector<GenerateRequest> requests;
    for (uint32_t i = 0; i < 5; ++i) {
      const Documents& documents = kDocuments[i % 4];
      requests.push_back(documents.Ask(blocks == 30 ? 30 : 60));
      requests.back().sampling.temperature = 1;
      requests.back().sampling.seed = i;
      if (i == 1 && blocks == 70) requests.back().n = 3;
    }
    std::vector<LogitRows> rows(requests.size());
    std::vector<std::unique_ptr<Pending>> pending;
    for (size_t i = 0; i < requests.size(); ++i) {
      GenerateRequest request = requests[i];
      request.on_logits = RecordInto(rows[i]);
      pending.push_back(std::make_unique<Pending>(*engine, std::move(request)));
      ASSERT_FALSE(pending.back()->refused()) << pending.back()->refused()->message;
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      const Answer answer = pending[i]->Wait();
      ASSERT_FALSE(answer.error) << answer.error->message;
      EXPECT_EQ(answer.receipt.computed + answer.receipt.cached_tokens(),
                requests[i].prompt.size());
      for (uint32_t of = 0; of < requests[i].n; ++of) {
        EXPECT_GT(CompareSpanRows(SpanTwinRows(requests[i], answer, of), rows[i], of,
                                  "request " + std::to_string(i)),
                  10u);
      }
    }
    engine->CheckInvariants();
    EXPECT_EQ(engine->Stats().pinned_blocks, 0u);
  }
}

TEST(Spans, FormatsTargetsThreadsAndDraftsChangeNoBit) {
  const Documents documents{.order = {2, 1, 0}, .between = 2, .seam = 8, .span_head = 1};
  const GenerateRequest request = documents.Ask(25);
  const std::vector<Target> targets = SupportedTargets();
  size_t turn = 0;
  for (const char* name : {"tiny-gqa", "tiny-yarn", "tiny-smollm3", "tiny-qwen3"}) {
    const std::string model = std::string(KVASIR_SOURCE_DIR "/tests/data/") + name;
    for (const char* format : kAllKvFormats) {
      EngineOptions options = RowOptions(model);
      options.kv_format = format;
      options.target = NameOf(targets[turn++ % targets.size()]);
      options.threads = 3;
      options.speculate = Speculate::kAlways;
      const auto engine = LoadEngine(options);
      LogitRows first, second;
      const Answer answer = AskWithRows(*engine, request, first);
      GenerateRequest predicted = request;
      predicted.prediction = answer.choices[0].tokens;
      AskWithRows(*engine, predicted, second);
      const auto want = SpanTwinRows(request, answer, 0, model, *ParseKvFormats(format));
      EXPECT_GT(CompareSpanRows(want, first, 0, std::string(name) + " " + format), 40u);
      EXPECT_GT(CompareSpanRows(want, second, 0, "drafted"), 30u);
    }
  }
}

TEST(Spans, ComeFromDisk) {
  EngineOptions options = RowOptions();
  options.disk = DiskOptions{.folder = ScratchDir() / "spans", .cap_bytes = uint64_t{64} << 20};
  const Documents documents{.order = {0, 1, 2, 4}, .seam = 4, .span_head = 1};
  const GenerateRequest request = documents.Ask(10);
  std::map<uint32_t, std::vector<float>> want;
  for (const char* time : {"cold", "disk"}) {
    const auto engine = LoadEngine(options);
    LogitRows rows;
    const Answer answer = AskWithRows(*engine, request, rows);
    if (want.empty()) want = SpanTwinRows(request, answer);
    CompareSpanRows(want, rows, 0, time);
    const bool is_cold = time == std::string_view("cold");
    EXPECT_EQ(answer.receipt.reused_disk == 0, is_cold);
  }
}

TEST(Spans, RefusesByName) {
  const auto refused = [](const EngineOptions& options, const GenerateRequest& request) {
    const auto engine = LoadEngine(options);
    const Pending pending(*engine, request);
    return pending.refused() ? pending.refused()->text() : "";
  };
  const GenerateRequest plain = Documents{.order = {0, 1}}.Ask(3);
  const auto ask = [&](std::vector<PromptSpan> spans) {
    GenerateRequest request = plain;
    request.spans->spans = std::move(spans);
    return request;
  };
  EXPECT_EQ(refused(RowOptions(), ask({{20, 60}, {59, 80}})),
            "cache.spans[1]: [59, 80] begins before the end of the span before it, 60");
  EXPECT_EQ(refused(RowOptions(), ask({{60, 20}})),
            "cache.spans[0]: [60, 20] is empty or runs backwards");
  EXPECT_EQ(refused(RowOptions(), ask({{20, 900}})),
            "cache.spans[0]: [20, 900] ends after the prompt, which has 111 tokens");
  GenerateRequest many = plain;
  many.spans->spans.assign(65, {0, 1});
  EXPECT_EQ(refused(RowOptions(), many), "cache.spans: 65 spans; a prompt has at most 64");
  GenerateRequest far = plain;
  far.spans->head = 22;
  EXPECT_EQ(refused(RowOptions(), far),
            "cache.span_head: 22 is not in [0, 21], up to the first span");
  far.spans->head.reset();
  far.spans->seam = 257;
  EXPECT_EQ(refused(RowOptions(), far), "cache.seam: 257 is not in [0, 256]");
  GenerateRequest dropped = plain;
  dropped.retention = RetentionChoice{.policy = Retention::kWindow};
  EXPECT_NE(refused(RowOptions(), dropped).find("cache.spans: a request has spans or drops"),
            std::string::npos);
  for (const auto& [model, why] :
       std::vector<std::pair<std::string, std::string>>{{"tiny-gpt2", "learned positions"},
                                                        {"tiny-longrope", "RoPE longrope"},
                                                        {"tiny-gemma2", "sliding windows"}}) {
    const std::string text =
        refused(RowOptions(KVASIR_SOURCE_DIR "/tests/data/" + model), ask({{20, 60}}));
    EXPECT_NE(text.find("cache.spans: "), std::string::npos) << text;
    EXPECT_NE(text.find(why), std::string::npos) << text;
  }
  GenerateRequest sourced = ask({{20, 60}});
  sourced.source = {5, 6, 2};
  EXPECT_NE(refused(RowOptions(KVASIR_SOURCE_DIR "/tests/data/m2m100-tiny"), sourced)
                .find("cache.spans: models with an encoder"),
            std::string::npos);
  EngineOptions none = RowOptions();
  none.cache_mode = CacheMode::kNone;
  EXPECT_NE(refused(none, plain).find("--cache none"), std::string::npos);
  // Too short for spans, or none: ordinary text.
  const auto engine = LoadEngine(RowOptions());
  LogitRows rows;
  const Answer answer = AskWithRows(*engine, ask({{30, 61}, {70, 90}}), rows);
  EXPECT_EQ(answer.receipt.spans->plain, 2u);
  EXPECT_FALSE(answer.receipt.spans->inexact_from);
}

}  // namespace
}  // namespace kvasir
