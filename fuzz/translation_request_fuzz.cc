// Bodies of POST /v1/translations and POST /translate: an error about the request, or requests that
// an engine takes, whose answer is JSON with an entry for each text. First byte: the path and the
// body's type; then the body. The boundary of a multipart body is "x".
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "api/translation_request.h"
#include "base/check.h"
#include "cost_limits.h"
#include "fuzz_target.h"
#include "server/fake_engine_for_test.h"
#include "server/service.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr uint64_t kTranslationQuotaBytes = 32 << 20;

struct TranslationWorld {
  std::unique_ptr<Tokenizer> tokenizer =
      *Tokenizer::Parse(LanguagesTokenizerJson(), kTinyTokenizerConfig);
  std::unique_ptr<FakeEngine> engine = std::make_unique<FakeEngine>(tokenizer.get(), nullptr);
  std::unique_ptr<Service> service;

  TranslationWorld() {
    engine->mutable_card().decoder_start = 257;
    service = *Service::Make({}, *engine);
  }
};

void CheckRequest(const GenerateRequest& request, const EngineOptions& options) {
  KV_CHECK(request.source.size() > 2 && request.prompt.size() == 2 && request.n >= 1);
  KV_CHECK(request.min_tokens <= request.max_tokens);
  if (!request.beams) return;
  KV_CHECK(request.beams->beams >= 2 && request.beams->beams <= options.parallel);
  KV_CHECK(request.n <= request.beams->beams && request.stop.empty() && !request.logprobs);
}

// Answers with a word for each choice.
std::string Answered(const GenerationStart& start) {
  std::string streamed;
  for (size_t i = 0; i < start.requests.size(); ++i) {
    const GenerateRequest& request = start.requests[i];
    for (uint32_t choice = 0; choice < request.n; ++choice) {
      Event event;
      event.choice = choice;
      event.text = "w\xC3\xB6rd.";
      event.tokens.push_back({.id = 7, .text = event.text, .logprob = -1, .top = {}});
      event.finish_reason = FinishReason::kStop;
      if (request.beams) event.score = -1.0f;
      event.last = choice + 1 == request.n;
      streamed += start.answer->Take(i, event);
    }
  }
  KV_CHECK(start.answer->done() && !start.answer->error());
  return start.answer->streams() ? streamed : Joined(start.answer->Body());
}

void CheckStream(std::string_view stream) {
  constexpr std::string_view kBegin = "data: ", kEnd = "\n\n", kDone = "[DONE]";
  std::string_view event;
  while (!stream.empty()) {
    KV_CHECK(stream.starts_with(kBegin));
    event = stream.substr(kBegin.size(), stream.find(kEnd) - kBegin.size());
    stream.remove_prefix(kBegin.size() + event.size() + kEnd.size());
    KV_CHECK(event == kDone || json::parse(event).at("data").is_array());
  }
  KV_CHECK(event == kDone);
}

}  // namespace
}  // namespace kvasir

KV_FUZZ_TARGET(translation_request)(const uint8_t* data, size_t size) {
  using namespace kvasir;
  static TranslationWorld world;
  static constexpr const char* kTypes[] = {"application/json", "application/json",
                                           "application/x-www-form-urlencoded",
                                           "multipart/form-data; boundary=\"x\""};
  if (size == 0) return 0;
  HttpRequest request;
  request.method = "POST";
  request.target = data[0] % 4 == 0 ? "/v1/translations" : "/translate";
  request.content_type = kTypes[data[0] % 4];
  request.body.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  KV_CHECK(KeyInLibreBody(request.body, request.content_type).size() <= size);
  MemoryQuota quota(kTranslationQuotaBytes);
  QuotaShare share;
  const CpuLimit limit;
  const Outcome outcome = world.service->Prepare(request, quota, &share);
  limit.Check(size);
  share = QuotaShare();
  KV_CHECK(quota.taken_bytes() == 0);
  if (const auto* response = std::get_if<HttpResponse>(&outcome)) {
    KV_CHECK(response->status < 500);
    if (response->content_type.starts_with("text/event-stream")) {
      CheckStream(response->body);
    } else {
      KV_CHECK(json::parse(response->body).is_object());
    }
    return 0;
  }
  const auto& start = std::get<GenerationStart>(outcome);
  KV_CHECK(!start.requests.empty());
  for (const GenerateRequest& one : start.requests) CheckRequest(one, world.engine->options());
  const std::string answer = Answered(start);
  if (start.answer->streams()) {
    CheckStream(answer);
  } else {
    KV_CHECK(json::parse(answer).is_object());
  }
  return 0;
}
