#include "observe/request_spans.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "observe/span_exporter.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr int64_t kOffsetNs = 1'700'000'000'000'000'000;

TracedRequest Whole() {
  TracedRequest request{.root = {1, 2, 3, 4, 5, 6, 7, 8}, .id = "cmpl-1", .model_name = "m"};
  request.context.trace = {0xab, 0xcd};
  request.trace = {.submitted_ns = 100,
                   .admitted_ns = 200,
                   .matched_ns = 210,
                   .first_token_ns = 300,
                   .last_token_ns = 900,
                   .ended_ns = 950};
  request.trace.preemptions = {{.begin_ns = 400, .resumed_ns = 500, .caught_up_ns = 600},
                               {.begin_ns = 700}};
  request.trace.allocations = {
      {.begin_ns = 310, .end_ns = 320, .evicted_blocks = 3, .evicted_tokens = 40},
      {.begin_ns = 330, .end_ns = 390, .waited = true}};
  return request;
}

json SpansOf(const TracedRequest& request) {
  const json body = OtlpJson({&request, 1}, {.version = "1.2"}, kOffsetNs);
  return body.at("resourceSpans").at(0).at("scopeSpans").at(0).at("spans");
}

json Named(const json& spans, std::string_view name) {
  for (const json& span : spans) {
    if (span.at("name") == name) return span;
  }
  ADD_FAILURE() << "no span " << name;
  return {};
}

TEST(RequestSpans, AsManyAsWereCountedWithDifferentIds) {
  TracedRequest request = Whole();
  for (const uint64_t first_token_ns : {300, 0}) {
    for (const uint64_t admitted_ns : {200, 0}) {
      request.trace.first_token_ns = admitted_ns == 0 ? 0 : first_token_ns;
      request.trace.admitted_ns = admitted_ns;
      const json spans = SpansOf(request);
      EXPECT_EQ(spans.size(), NumSpans(request.trace));
      std::set<std::string> ids;
      for (const json& span : spans) {
        ids.insert(span.at("spanId"));
        EXPECT_NE(span.at("spanId"), "0000000000000000");
      }
      EXPECT_EQ(ids.size(), spans.size());
    }
  }
}

TEST(RequestSpans, NumbersOf64BitsAreTextAndIdsAreHex) {
  const json root = Named(SpansOf(Whole()), "llm_request");
  EXPECT_EQ(root.at("traceId"), "abcd0000000000000000000000000000");
  EXPECT_EQ(root.at("spanId"), "0102030405060708");
  EXPECT_EQ(root.at("startTimeUnixNano"), "1700000000000000100");
  EXPECT_EQ(root.at("endTimeUnixNano"), "1700000000000000950");
  EXPECT_FALSE(root.contains("parentSpanId"));
  for (const json& each : root.at("attributes")) {
    if (each.at("key") == "gen_ai.request.n") {
      EXPECT_EQ(each.at("value").at("intValue"), "1");
    }
  }
}

TEST(RequestSpans, AnEvictionBelongsToItsAllocation) {
  const json spans = SpansOf(Whole());
  const json evict = Named(spans, "evict"), allocate = Named(spans, "allocate");
  EXPECT_EQ(evict.at("parentSpanId"), allocate.at("spanId"));
  EXPECT_EQ(allocate.at("parentSpanId"), "0102030405060708");
  EXPECT_NE(evict.dump().find(R"("other")"), std::string::npos);
  // A preemption that was not resumed lasts to the end.
  EXPECT_EQ(spans.at(7).at("name"), "preempt");
  EXPECT_EQ(spans.at(7).at("endTimeUnixNano"), "1700000000000000950");
}

TEST(CollectorAddress, HasDefaults) {
  const auto whole = ParseCollectorAddress("http://otel:4319/x/traces");
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->host + " " + whole->port + " " + whole->path, "otel 4319 /x/traces");
  const auto host = ParseCollectorAddress("http://[::1]");
  ASSERT_TRUE(host);
  EXPECT_EQ(host->host + " " + host->port + " " + host->path, "::1 4318 /v1/traces");
}

TEST(CollectorAddress, RefusesWhatIsNoHttpAddress) {
  for (const char* url : {"", "http://", "https://h", "ftp://h", "h:4318", "http://:1",
                          "http://h:", "http://h:x", "http://h:123456", "http://u@h", "http://[::1",
                          "http://h x", "http://h/a b", "http://h/a\r\nX: y"}) {
    const auto address = ParseCollectorAddress(url);
    ASSERT_FALSE(address) << url;
    EXPECT_EQ(address.error().field, "otlp_traces_endpoint");
  }
}

}  // namespace
}  // namespace kvasir
