// What receipts and counters say of the spans of requests that do not run through to their end.
#include <future>
#include <utility>

#include "span_documents.h"

namespace kvasir {
namespace {

uint32_t AllSpanTokens(const SpansReceipt& spans) {
  return spans.reused_tokens + spans.computed_tokens + spans.seam_tokens;
}

TEST(SpanCounts, ARequestThatNeverRanCountsNoTokens) {
  EngineOptions options = RowOptions();
  options.parallel = 1;
  const auto engine = LoadEngine(options);
  const GenerateRequest request = Documents{.order = {0, 1, 2}}.Ask(100);
  GenerateRequest first = request;
  first.spans.reset();
  std::promise<void> begun, cancelled;
  first.on_logits = [&, has_begun = false](uint32_t, uint32_t, std::span<const float>) mutable {
    if (std::exchange(has_begun, true)) return;
    begun.set_value();
    cancelled.get_future().wait();
  };
  Pending runs(*engine, first);
  begun.get_future().wait();
  Pending waits(*engine, request);
  waits.Cancel();
  cancelled.set_value();
  const SpansReceipt spans = waits.Wait().receipt.spans.value();
  EXPECT_EQ(spans.count, 3u);
  EXPECT_EQ(AllSpanTokens(spans), 0u);
  runs.Wait();
  const EngineStats stats = engine->Stats();
  EXPECT_EQ(stats.span_reused_tokens + stats.span_computed_tokens + stats.span_seam_tokens, 0u);
}

// The prompt's rows come one by one, so the logits of a row say what was counted before it.
TEST(SpanCounts, ARequestThatIsCutShortCountsWhatItCameTo) {
  const Documents documents{.order = {0, 1, 2}, .between = 3, .seam = 8, .span_head = 1};
  const GenerateRequest request = documents.Ask(5);
  const std::vector<PromptSpan>& spans = request.spans->spans;
  const auto size = [&](size_t span) { return spans[span].end - spans[span].begin; };
  const auto all_read = size(0) + size(1) + size(2) - 3 * 8;  // every part comes before the seams
  for (const uint32_t last : {5u, spans[0].begin + 3, spans[1].begin + 2, spans[2].begin + 7}) {
    const auto engine = LoadEngine(RowOptions());
    GenerateRequest cut = request;
    cut.chunk_tokens = 1;
    std::promise<void> reached, cancelled;
    cut.on_logits = [&](uint32_t, uint32_t position, std::span<const float>) {
      if (position != last) return;
      reached.set_value();
      cancelled.get_future().wait();
    };
    Pending pending(*engine, std::move(cut));
    reached.get_future().wait();
    pending.Cancel();
    cancelled.set_value();
    const SpansReceipt receipt = pending.Wait().receipt.spans.value();
    uint32_t seams = 0;
    for (const PromptSpan& span : spans) {
      seams += std::clamp(last + 1, span.begin, span.begin + 8) - span.begin;
    }
    EXPECT_EQ(receipt.seam_tokens, seams) << last;
    EXPECT_EQ(receipt.reused_tokens, 0u) << last;
    EXPECT_EQ(receipt.computed_tokens, last == 5 ? 0u : all_read) << last;
    EXPECT_EQ(engine->Stats().span_computed_tokens, receipt.computed_tokens) << last;
    EXPECT_EQ(engine->Stats().pinned_blocks, 0u);
  }
}

}  // namespace
}  // namespace kvasir
