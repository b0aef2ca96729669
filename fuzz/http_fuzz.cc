// Sends any request to Service: first line `METHOD /path`, then the body. The answer must be JSON
// (or metrics), and a generation that it starts must be answerable.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "api/llama_writer.h"
#include "base/check.h"
#include "fuzz_target.h"
#include "server/fake_engine_for_test.h"
#include "server/service.h"

namespace kvasir {
namespace {

struct HttpWorld {
  std::unique_ptr<Tokenizer> tokenizer =
      *Tokenizer::Parse(FimTokenizerJson(), kTinyTokenizerConfig);
  std::unique_ptr<ChatTemplate> chat_template = *ChatTemplate::Parse(kTinyTemplate);
  FakeEngine engine{tokenizer.get(), chat_template.get()};
  std::unique_ptr<Service> service = *Service::Make({}, engine);
};

HttpRequest ParsedRequest(std::string_view input) {
  const size_t line = std::min(input.find('\n'), input.size());
  const size_t space = std::min(input.find(' '), line);
  HttpRequest request;
  request.method = std::string(input.substr(0, space));
  request.target =
      std::string(input.substr(std::min(space + 1, line), line - std::min(space + 1, line)));
  request.body = std::string(input.substr(std::min(line + 1, input.size())));
  return request;
}

// Sends two tokens, the second of which is half a character, and the end of each choice.
void CheckGeneration(GenerationStart start) {
  std::string stream;
  for (size_t i = 0; i < start.requests.size(); ++i) {
    const GenerateRequest& request = start.requests[i];
    KV_CHECK(!request.prompt.empty() && request.prompt.size() <= 64 && request.n >= 1);
    for (uint32_t choice = 0; choice < request.n; ++choice) {
      Event event;
      event.choice = choice;
      event.text = "a";
      event.tokens = {{'a', "a", -1, {{'a', -1}}}, {0xc3, "", -2, {{256, -1}}}};
      event.finish_reason = FinishReason::kStop;
      event.last = choice + 1 == request.n;
      if (event.last) event.receipt.ignored = request.ignored;
      for (size_t at = 1; request.scores_prompt && choice == 0 && at < request.prompt.size();
           ++at) {
        event.scored.push_back({request.prompt[at], "", -1, {{'a', -1}}});
      }
      if (request.reports_progress && choice == 0) event.progress = {.total = 1, .processed = 1};
      stream += start.answer->Take(i, event);
    }
  }
  KV_CHECK(start.answer->done() && !start.answer->error());
  if (start.answer->streams()) {
    const bool is_llama = dynamic_cast<const LlamaWriter*>(&start.answer->writer()) != nullptr;
    KV_CHECK(stream.ends_with(is_llama ? "}\n\n" : "data: [DONE]\n\n"));
  } else {
    KV_CHECK(nlohmann::json::accept(Joined(start.answer->Body())));
  }
}

void CheckResponse(HttpResponse response) {
  response.body += Joined(std::move(response.rest));
  KV_CHECK(response.status >= 200 && response.status < 600 && response.status != 500);
  KV_CHECK(!response.body.empty());
  if (response.content_type == "application/json") KV_CHECK(nlohmann::json::accept(response.body));
}

}  // namespace
}  // namespace kvasir

KV_FUZZ_TARGET(http)(const uint8_t* data, size_t size) {
  static kvasir::HttpWorld world;
  const kvasir::HttpRequest request =
      kvasir::ParsedRequest({reinterpret_cast<const char*>(data), size});
  if (auto refused = world.service->CheckHead(request, request.body.size())) {
    kvasir::CheckResponse(std::move(*refused));
    return 0;
  }
  kvasir::Outcome outcome = world.service->Handle(request);
  if (auto* response = std::get_if<kvasir::HttpResponse>(&outcome)) {
    kvasir::CheckResponse(std::move(*response));
  } else if (auto* later = std::get_if<kvasir::LaterAnswer>(&outcome)) {
    later->begin([](kvasir::HttpResponse told) { kvasir::CheckResponse(std::move(told)); });
  } else {
    kvasir::CheckGeneration(std::move(std::get<kvasir::GenerationStart>(outcome)));
  }
  return 0;
}
