// Spans beside what else decides the bits of KV, and what must not: adapters, targets, the disk.
#include "engine_adapters.h"
#include "simd/target.h"
#include "span_documents.h"

namespace kvasir {
namespace {

// What was computed of a span with one adapter is not read with another, or at another scale.
TEST(SpansMix, AdaptersHaveSeparateSpans) {
  const auto engine = LoadEngine(WithAdapters());
  const uint64_t a = LoadSeed(*engine, "a", 1).id, b = LoadSeed(*engine, "b", 2).id;
  const Documents documents{.order = {0, 1, 2}, .seam = 8, .span_head = 1};
  Documents turned = documents;
  turned.order = {2, 0, 1};
  const std::vector<Choices> all = {{}, {{a, 1}}, {{a, 0.5}}, {{b, 1}}, {{a, 1}, {b, 1}}};
  const auto ask = [&](const Documents& of, const Choices& adapters, Reuse reuse, LogitRows& rows) {
    GenerateRequest request = of.Ask(12);
    request.adapters = adapters;
    request.reuse = reuse;
    return AskWithRows(*engine, std::move(request), rows).receipt;
  };
  std::vector<LogitRows> want(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    ask(turned, all[i], Reuse::kNothing, want[i]);
    for (size_t j = 0; j < i; ++j) EXPECT_NE(want[i].rbegin()->second, want[j].rbegin()->second);
  }
  for (const char* time : {"first", "second"}) {
    for (size_t i = 0; i < all.size(); ++i) {
      LogitRows others, rows;
      const Receipt before = ask(documents, all[i], Reuse::kBlocks, others);
      // (Later the oldest namespace may have made room for another one.)
      if (time == std::string_view("first")) EXPECT_EQ(before.cached_tokens(), 0u) << i;
      const Receipt receipt = ask(turned, all[i], Reuse::kBlocks, rows);
      EXPECT_EQ(receipt.spans->computed_tokens, 0u) << i;
      EXPECT_GT(receipt.spans->reused_tokens, 60u) << i;
      ExpectSameRows(want[i], rows, std::string(time) + " " + std::to_string(i));
    }
  }
  // Another adapter under the same name begins anew.
  LoadSeed(*engine, "a", 3, Engine::AdapterNames::kMayReplace);
  LogitRows rows, cold;
  EXPECT_EQ(ask(turned, all[1], Reuse::kBlocks, rows).spans->reused_tokens, 0u);
  ask(turned, all[1], Reuse::kNothing, cold);
  ExpectSameRows(cold, rows, "replaced");
  EXPECT_NE(rows.rbegin()->second, want[1].rbegin()->second);
}

// Each target reads from the disk what another one wrote there.
TEST(SpansMix, TargetsReadEachOthersSpansFromDisk) {
  const std::vector<Target> targets = SupportedTargets();
  ASSERT_GE(targets.size(), 2u);
  const Documents documents{.order = {0, 1, 2}, .between = 3, .seam = 8, .span_head = 1};
  Documents turned = documents;
  turned.order = {2, 0, 1};
  const GenerateRequest request = turned.Ask(12);
  std::map<uint32_t, std::vector<float>> want;
  for (const char* format : {"f16", "int4"}) {
    want.clear();
    for (size_t i = 0; i < targets.size(); ++i) {
      EngineOptions options = RowOptions();
      options.kv_format = format;
      options.disk = DiskOptions{
          .folder = ScratchDir() / ("span-targets-" + std::string(format) + std::to_string(i)),
          .cap_bytes = uint64_t{64} << 20};
      options.target = NameOf(targets[i]);
      LogitRows unused;
      AskWithRows(*LoadEngine(options), documents.Ask(3), unused);
      options.target = NameOf(targets[(i + 1) % targets.size()]);
      const auto engine = LoadEngine(options);
      LogitRows rows;
      const Answer answer = AskWithRows(*engine, request, rows);
      if (want.empty()) want = SpanTwinRows(request, answer, 0, kRowModel, *ParseKvFormats(format));
      const std::string what = std::string(format) + " by " + std::string(NameOf(targets[i]));
      EXPECT_GT(answer.receipt.reused_disk, 0u) << what;  // a slow load is overtaken
      EXPECT_EQ(answer.receipt.spans->reused_tokens + answer.receipt.spans->computed_tokens +
                    answer.receipt.spans->seam_tokens,
                Documents::Size(0) + Documents::Size(1) + Documents::Size(2));
      EXPECT_GT(CompareSpanRows(want, rows, 0, what), 30u);
    }
  }
}

}  // namespace
}  // namespace kvasir
