#include "observe/metrics.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "base/own_clock.h"
#include "observe/metric_series.h"
#include "source_paths.h"

namespace kvasir {
namespace {

struct Facts {
  EngineStats stats;
  ModelCard card;
  MemoryPlan plan;
  EngineOptions options;

  MetricsView View() {
    return {.stats = stats, .card = card, .plan = plan, .options = options, .model_name = "m"};
  }
  std::string Text() { return PrometheusText(View()); }
};

bool Has(const std::string& text, const std::string& line) {
  return text.find("\n" + line + "\n") != std::string::npos;
}

std::vector<MetricSeries> AllSeries() {
  std::vector<MetricSeries> all;
  for (const auto part :
       {VllmSeries(), CacheSeries(), TierSeries(), RequestSeries(), ProcessSeries()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

TEST(Metrics, NamesAreUniqueAndSayKindAndOwner) {
  std::set<std::string> names;
  for (const MetricSeries& series : AllSeries()) {
    const std::string name = series.name;
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_TRUE(name.starts_with("vllm:") || name.starts_with("llamacpp:") ||
                name.starts_with("kvasir_") || name.starts_with("process_"))
        << name;
    EXPECT_EQ(series.type == prometheus::MetricType::Counter,
              name.ends_with("_total") && name != "vllm:iteration_tokens_total")
        << name;
    EXPECT_EQ(std::string(series.help).back(), '.') << name;
  }
}

TEST(Metrics, DocsHaveTheTableOfTheCode) {
  const std::string path = KVASIR_SOURCE_DIR "/docs/metrics.md";
  const std::string mark = "<!-- series -->\n";
  std::ifstream file(path);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t begin = text.find(mark);
  ASSERT_NE(begin, std::string::npos) << path << " has no line " << mark;
  const std::string wanted = text.substr(0, begin + mark.size()) + MetricsMarkdown();
  if (std::getenv("KVASIR_WRITE_DOCS") != nullptr) {
    std::ofstream(path) << wanted;
    return;
  }
  EXPECT_EQ(text, wanted) << "run this test with KVASIR_WRITE_DOCS=1";
}

TEST(Metrics, VllmSeriesHaveModelAndEngineAndOthersDoNot) {
  Facts facts;
  facts.stats.reused_pool = 3;
  facts.stats.reused_partial = 4;
  facts.stats.computed_tokens = 5;
  facts.stats.requests.stopped = 6;
  facts.stats.ttft_seconds.Observe(0.03);
  const std::string text = facts.Text();
  EXPECT_TRUE(Has(text, R"(vllm:prefix_cache_hits_total{model_name="m",engine="0"} 7)"));
  EXPECT_TRUE(Has(
      text,
      R"(vllm:prompt_tokens_by_source_total{model_name="m",engine="0",source="local_compute"} 5)"));
  EXPECT_TRUE(Has(
      text, R"(vllm:request_success_total{model_name="m",engine="0",finished_reason="stop"} 6)"));
  EXPECT_TRUE(Has(
      text, R"(vllm:time_to_first_token_seconds_bucket{model_name="m",engine="0",le="0.04"} 1)"));
  EXPECT_TRUE(Has(
      text, R"(vllm:time_to_first_token_seconds_bucket{model_name="m",engine="0",le="0.02"} 0)"));
  EXPECT_TRUE(Has(text, R"(kvasir_reused_tokens_total{source="pool"} 3)"));
}

TEST(Metrics, TenantsHaveSeriesOnlyWhereThereAreSeveral) {
  Facts facts;
  facts.stats.tenants = {{}, {.name = "a", .requests = 2, .service_ns = 3e9}};
  EXPECT_EQ(facts.Text().find("kvasir_tenant_"), std::string::npos);
  MetricsView view = facts.View();
  view.by_tenant = true;
  const std::string text = PrometheusText(view);
  EXPECT_TRUE(Has(text, R"(kvasir_tenant_requests_total{tenant="a"} 2)"));
  EXPECT_TRUE(Has(text, R"(kvasir_tenant_service_seconds_total{tenant="a"} 3)"));
  EXPECT_EQ(text.find("tenant=\"\""), std::string::npos);
}

TEST(Metrics, RejectionsAddUpOverReasons) {
  Facts facts;
  facts.stats.requests.rejected[static_cast<size_t>(RejectReason::kMemory)] = 5;
  facts.stats.requests.rejected[static_cast<size_t>(RejectReason::kDraining)] = 1;
  const std::string text = PrometheusText(facts.View());
  EXPECT_TRUE(Has(text, R"(kvasir_rejected_requests_total{reason="memory"} 5)"));
  EXPECT_TRUE(Has(text, R"(vllm:admission_rejections_total{model_name="m",engine="0"} 6)"));
}

TEST(Metrics, TheShareOfBandwidthIsOfTheStepsOfTheLastMinute) {
  OwnClock clock;
  Facts facts;
  EXPECT_EQ(facts.Text().find("kvasir_mbu_ratio"), std::string::npos);  // no limit is known
  facts.stats.requests.recent_read_bytes = 500;
  facts.stats.requests.recent_step_ns = 1'000'000'000;
  facts.stats.requests.recent_end_ns = MonotonicNs();
  MetricsView view = facts.View();
  view.read_limit = 1000;
  EXPECT_TRUE(Has(PrometheusText(view), "kvasir_mbu_ratio 0.5"));
  clock.Advance(std::chrono::seconds(61));
  EXPECT_TRUE(Has(PrometheusText(view), "kvasir_mbu_ratio 0"));
}

TEST(Metrics, TheOldestWaitGrowsBetweenSteps) {
  OwnClock clock;
  Facts facts;
  EXPECT_TRUE(Has(facts.Text(), "kvasir_oldest_wait_seconds 0"));
  facts.stats.requests.oldest_wait_since_ns = MonotonicNs();
  clock.Advance(std::chrono::seconds(5));
  EXPECT_TRUE(Has(facts.Text(), "kvasir_oldest_wait_seconds 5"));
}

TEST(Metrics, ADiskHasTheTimesOfItsReadsAndWrites) {
  Facts facts;
  EXPECT_EQ(facts.Text().find("kvasir_tier_read_seconds"), std::string::npos);
  MetricsView view = facts.View();
  view.disk = TierStats();
  view.disk->read_seconds.Observe(0.003);
  view.disk->write_seconds.Observe(0.2);
  const std::string text = PrometheusText(view);
  EXPECT_TRUE(Has(text, R"(kvasir_tier_read_seconds_bucket{tier="disk",le="0.0025"} 0)"));
  EXPECT_TRUE(Has(text, R"(kvasir_tier_read_seconds_bucket{tier="disk",le="0.005"} 1)"));
  EXPECT_TRUE(Has(text, R"(kvasir_tier_write_seconds_count{tier="disk"} 1)"));
  EXPECT_TRUE(Has(text, R"(kvasir_tier_write_seconds_sum{tier="disk"} 0.2)"));
}

TEST(Metrics, TheProcessReadsItsOwnFigures) {
  const ProcessUsage usage = ReadProcessUsage();
  EXPECT_GT(usage.resident_bytes, uint64_t{1} << 20);
  EXPECT_GE(usage.open_files, 3u);
  EXPECT_GT(usage.cpu_seconds, 0);
  const double now_s = static_cast<double>(UnixS());
  EXPECT_GT(usage.start_seconds, now_s - 900);
  EXPECT_LT(usage.start_seconds, now_s + 2);
}

}  // namespace
}  // namespace kvasir
