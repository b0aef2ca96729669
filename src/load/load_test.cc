// What a load run sends, what it reads, and the figures that it makes of that. The client itself
// runs against a real server (tests/load_test.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "load/report.h"
#include "load/sse.h"

namespace kvasir::load {
namespace {

TEST(SseReader, ReadsPiecesOfAnySize) {
  const std::string stream =
      "data: {\"a\":1}\n\n: ping\n\nevent: x\ndata:two\r\n\r\ndata: [DONE]\n\nda";
  for (size_t size = 1; size <= stream.size(); ++size) {
    SseReader reader;
    std::vector<std::string> got;
    for (size_t at = 0; at < stream.size(); at += size) {
      reader.Feed(std::string_view(stream).substr(at, size),
                  [&](std::string_view data) { got.emplace_back(data); });
    }
    EXPECT_EQ(got, (std::vector<std::string>{"{\"a\":1}", "two", "[DONE]"})) << size;
  }
}

constexpr uint64_t kMs = 1'000'000;

TEST(Sample, CountsTokensOfCompletionsAndChats) {
  Sample sample{.due_ns = 10 * kMs, .status = 200};
  AddEvent(R"({"choices":[{"text":"","finish_reason":null}]})", 30 * kMs, sample);
  AddEvent(R"({"choices":[{"text":"b","finish_reason":null}]})", 35 * kMs, sample);
  AddEvent(R"({"choices":[{"text":"c","finish_reason":null}]})", 45 * kMs, sample);
  AddEvent(R"({"choices":[{"text":"","finish_reason":"stop"}]})", 46 * kMs, sample);
  AddEvent(R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,
               "prompt_tokens_details":{"cached_tokens":5}}})",
           47 * kMs, sample);
  AddEvent("[DONE]", 47 * kMs, sample);
  EXPECT_EQ(sample.ttft_ms(), 20);
  EXPECT_EQ(sample.gaps_ms, (std::vector<double>{5, 10}));
  EXPECT_EQ(sample.itl_ms(), 7.5);
  EXPECT_EQ(sample.prompt_tokens, 7u);
  EXPECT_EQ(sample.completion_tokens, 3u);
  EXPECT_EQ(sample.cached_tokens, 5u);
  EXPECT_TRUE(sample.done);

  Sample chat;
  AddEvent(R"({"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]})", 1,
           chat);
  EXPECT_EQ(chat.first_ns, 0u) << "the role is not a token";
  AddEvent(R"({"choices":[{"delta":{"content":"x"},"finish_reason":null}],"usage":null})", 2, chat);
  EXPECT_EQ(chat.first_ns, 2u);
}

TEST(Sample, TakesAWholeAnswer) {
  Sample sample{.due_ns = 10 * kMs, .status = 200};
  AddWhole(R"({"choices":[{"text":"abc","finish_reason":"stop"}],
               "usage":{"prompt_tokens":7,"completion_tokens":3}})",
           30 * kMs, sample);
  EXPECT_EQ(sample.ttft_ms(), 20);
  EXPECT_EQ(sample.completion_tokens, 3u);
  EXPECT_TRUE(sample.done);
  Sample broken{.status = 200};
  AddWhole("{\"choices\":", 30 * kMs, broken);
  EXPECT_FALSE(broken.done) << "half an answer is not an answer";
}

// Events with spaces are parsed; those without, as most servers send them, mostly not.
TEST(Sample, CountsTheSameTokensInAnySpelling) {
  const std::pair<const char*, bool> events[] = {
      {R"({"choices":[{"text":"\"role\"","finish_reason":null}],"usage":null})", true},
      {R"({"choices":[{"delta":{"content":""},"finish_reason":null}]})", true},
      {R"({"choices":[{"delta":{"role":"assistant"},"finish_reason":null}]})", false},
      {R"({"choices":[{"delta":{"role":"assistant","content":"x"},"finish_reason":null}]})", true},
      {R"({"choices":[{"text":"","finish_reason":"length"}]})", false},
      {R"({"choices":[{"text":"x","finish_reason":"length"}]})", true},
      {R"({"choices":[],"usage":{"prompt_tokens":1}})", false}};
  for (const auto& [compact, is_token] : events) {
    const std::string spaced = nlohmann::json::parse(compact).dump(1);
    for (const std::string& data : {std::string(compact), spaced}) {
      Sample sample;
      AddEvent(data, 5, sample);
      EXPECT_EQ(sample.first_ns == 5, is_token) << data;
    }
  }
}

TEST(Sample, IgnoresWhatItDoesNotKnow) {
  Sample sample;
  for (const char* data :
       {"", "{", "[]", "7", "{}", R"({"choices":7,"usage":[]})",
        R"({"choices":[7],"usage":{"prompt_tokens":-1}})", R"({"error":{"message":"x"}})"}) {
    AddEvent(data, 5, sample);
  }
  EXPECT_EQ(sample.first_ns, 0u);
  EXPECT_EQ(sample.prompt_tokens, 0u);
  EXPECT_FALSE(sample.done);
}

Sample Finished(uint32_t tenant, uint64_t ttft_ms, uint64_t itl_ms, uint64_t cached = 0) {
  return {.tenant = tenant,
          .due_ns = kMs,
          .first_ns = (1 + ttft_ms) * kMs,
          .last_ns = (1 + ttft_ms + itl_ms) * kMs,
          .gaps_ms = {static_cast<double>(itl_ms)},
          .status = 200,
          .done = true,
          .prompt_tokens = 100,
          .completion_tokens = 2,
          .cached_tokens = cached};
}

TEST(Report, CountsWhatIsGoodAndWhatWasRefused) {
  LoadResult result{.samples = {Finished(0, 50, 10), Finished(0, 500, 10), Finished(0, 50, 90)},
                    .seconds = 2};
  result.samples.push_back({.due_ns = kMs, .status = 429});
  result.samples.push_back({.due_ns = kMs, .status = 429});
  result.samples.push_back({.due_ns = kMs});
  Sample broken = Finished(0, 1, 1);
  broken.done = false;
  result.samples.push_back(broken);
  const Report report = MakeReport(result, {.slo_ttft_ms = 100, .slo_itl_ms = 20});
  EXPECT_EQ(report.requests, 7u);
  EXPECT_EQ(report.finished, 3u);
  EXPECT_EQ(report.broken, 1u);
  EXPECT_EQ(report.good, 1u);
  EXPECT_EQ(report.goodput_per_s, 0.5);
  EXPECT_EQ(report.refusals, (std::map<uint32_t, uint64_t>{{0, 1}, {429, 2}}));
  EXPECT_EQ(report.ttft_ms.p50, 50);
  EXPECT_EQ(report.itl_ms.max, 90);
  EXPECT_EQ(report.tokens_per_s, 3);
  const auto json = nlohmann::json::parse(JsonOf(report));
  EXPECT_EQ(json["refusals"]["429"], 2);
  EXPECT_EQ(json["server_rss_bytes"], nullptr);
  EXPECT_NE(TextOf(report).find("2 with status 429"), std::string::npos);
}

TEST(Report, ComparesTenantsByWhatWasComputedForThem) {
  const LoadResult result{.samples = {Finished(0, 50, 10), Finished(1, 50, 10, 51)}, .seconds = 1};
  const Report report = MakeReport(result, {});
  EXPECT_EQ(report.tenants.at(0).served_tokens(), 102u);
  EXPECT_EQ(report.tenants.at(1).served_tokens(), 51u);
  EXPECT_EQ(report.fairness, 0.5);
  EXPECT_EQ(report.cached_tokens, 51u);
}

TEST(Report, IsVoidWhenTheGeneratorWasBusy) {
  EXPECT_FALSE(MakeReport({}, {.own_cpu_share = 0.05}).is_void());
  const Report report = MakeReport({}, {.own_cpu_share = 0.06});
  EXPECT_TRUE(report.is_void());
  EXPECT_NE(TextOf(report).find("these figures are void"), std::string::npos);
}

std::vector<LoadRequest> Make(const WorkloadOptions& options,
                              const std::vector<RecordedRequest>& recording = {}) {
  auto made = MakeWorkload(options, recording);
  EXPECT_TRUE(made) << made.error().message;
  return made ? std::move(*made) : std::vector<LoadRequest>();
}

size_t Shared(const std::vector<TokenId>& a, const std::vector<TokenId>& b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

TEST(Workload, ABurstSharesItsBeginning) {
  const auto requests = Make({.name = "burst", .vocab_size = 30000, .max_total = 8192});
  ASSERT_EQ(requests.size(), 16u);
  EXPECT_EQ(requests[3].prompt.size(), 2048u + 64);
  EXPECT_EQ(Shared(requests[3].prompt, requests[9].prompt), 2048u);
  EXPECT_EQ(Make({.name = "burst"})[0].prompt.size(), 1024u + 64) << "half of max_total is shared";
}

TEST(Workload, AChatGoesOnFromItsLastPrompt) {
  const auto requests = Make({.name = "chats", .vocab_size = 30000});
  EXPECT_EQ(requests.size(), 256u);
  EXPECT_EQ(requests[0].client, requests[3].client);
  EXPECT_NE(requests[3].client, requests[4].client);
  EXPECT_EQ(Shared(requests[0].prompt, requests[1].prompt), requests[0].prompt.size());
  EXPECT_EQ(requests[1].max_tokens, 0u);
  EXPECT_FALSE(requests[1].to_the_end);
}

TEST(Workload, ARateGivesTimes) {
  const auto requests = Make({.name = "tenants", .requests = 400, .rate = 20, .tenants = 4});
  EXPECT_TRUE(std::ranges::is_sorted(requests, {}, &LoadRequest::due_s));
  EXPECT_NEAR(requests.back().due_s, 20, 4);
  std::set<uint32_t> tenants;
  for (const LoadRequest& request : requests) tenants.insert(request.tenant);
  EXPECT_EQ(tenants.size(), 4u);
  EXPECT_EQ(Make({.name = "tenants", .rate = 20})[5].due_s,
            Make({.name = "tenants", .rate = 20})[5].due_s);
  EXPECT_NE(Make({.name = "tenants", .rate = 20, .seed = 2})[5].due_s,
            Make({.name = "tenants", .rate = 20})[5].due_s);
}

TEST(Workload, ARecordingIsScaledAndCut) {
  const std::vector<RecordedRequest> recording = {
      {.timestamp_ms = 1000, .input_tokens = 1000, .output_tokens = 100, .block_ids = {1, 2}},
      {.timestamp_ms = 3000, .input_tokens = 9000, .output_tokens = 9000, .block_ids = {1}}};
  const auto requests = Make({.name = "mooncake", .scale = 0.5, .max_total = 600}, recording);
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].due_s, 2);
  EXPECT_EQ(requests[0].prompt.size(), 500u);
  EXPECT_EQ(requests[0].max_tokens, 50u);
  EXPECT_EQ(requests[1].max_tokens, 300u);
  EXPECT_LE(requests[1].prompt.size(), 300u);
  EXPECT_FALSE(MakeWorkload({.name = "azure"}, {}));
  std::vector<RecordedRequest> many(100);
  for (uint32_t i = 0; i < 100; ++i) {
    many[i] = {.input_tokens = i + 1, .output_tokens = 1, .block_ids = {i}};
  }
  const auto shuffled = Make({.name = "azure", .rate = 1, .shuffle = true}, many);
  std::vector<size_t> sizes;
  for (const LoadRequest& request : shuffled) sizes.push_back(request.prompt.size());
  EXPECT_FALSE(std::ranges::is_sorted(sizes));
  std::ranges::sort(sizes);
  ASSERT_EQ(sizes.size(), 100u);
  for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(sizes[i], i + 1);
  EXPECT_EQ(MakeWorkload({.name = "x"}, {}).error().message,
            "--workload: 'x' is unknown (known: burst, chats, tenants, azure, mooncake)");
}

TEST(Client, WritesBodiesOfEitherApi) {
  const LoadRequest request{.prompt = {5, 6}, .max_tokens = 3};
  const auto body = nlohmann::json::parse(BodyOf(request, {.model = "m", .temperature = 2}));
  EXPECT_EQ(body["prompt"], (std::vector<TokenId>{5, 6}));
  EXPECT_EQ(body["max_tokens"], 3);
  EXPECT_EQ(body["ignore_eos"], true);
  EXPECT_EQ(body["model"], "m");
  const auto chat =
      nlohmann::json::parse(BodyOf({.prompt = {5, 6}, .to_the_end = false}, {.chat = true}));
  EXPECT_EQ(chat["messages"][0]["content"], "5 6 ");
  EXPECT_FALSE(chat.contains("max_tokens"));
  EXPECT_FALSE(chat.contains("ignore_eos"));
}

TEST(Client, ReadsUrls) {
  EXPECT_EQ(ParseUrl("http://localhost:81/")->port, "81");
  EXPECT_EQ(ParseUrl("http://h")->host, "h");
  for (const char* url :
       {"", "localhost:80", "https://h", "http://", "http://h:x", "http://h/v1"}) {
    EXPECT_FALSE(ParseUrl(url)) << url;
  }
}

TEST(Client, SaysWhenThereIsNoServer) {
  const auto result = RunLoad({{.prompt = {1}}}, {.target = {.port = "1"}, .concurrency = 1});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Code::kUnavailable);
}

}  // namespace
}  // namespace kvasir::load
