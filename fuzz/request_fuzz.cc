// Turns a body into a prompt, with several templates and the bundled tokenizer, and checks its
// cost. First byte: the template; second: the path; then the body. In a body,
// "\x01NN...\x02" repeats the text between up to 65,536 times (NN: a 16-bit number): quadratic work
// only shows in large bodies, and a fuzzer makes small ones.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cost_limits.h"
#include "fuzz_target.h"
#include "server/fake_engine_for_test.h"
#include "server/service.h"
#include "source_paths.h"

namespace kvasir {
namespace {

constexpr size_t kMaxBody = 256 << 10;
constexpr uint64_t kRequestQuotaBytes = 32 << 20;

std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct RequestWorld {
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<std::unique_ptr<ChatTemplate>> templates;
  std::vector<std::unique_ptr<FakeEngine>> engines;
  std::vector<std::unique_ptr<Service>> services;

  RequestWorld() {
    const std::filesystem::path source = KVASIR_SOURCE_DIR;
    const auto demo = source / "models/kvasir-demo";
    tokenizer = *Tokenizer::Parse(ReadAll(demo / "tokenizer.json"),
                                  ReadAll(demo / "tokenizer_config.json"));
    std::vector<std::string> sources = {std::string(kTinyTemplate)};
    std::vector<std::filesystem::path> configs = {demo / "tokenizer_config.json"};
    std::error_code ignored;
    for (const char* folder : {"../shared/goldens", "../shared/data/hf-tokenizers"}) {
      for (const auto& entry :
           std::filesystem::recursive_directory_iterator(source / folder, ignored)) {
        if (entry.path().filename() == "tokenizer_config.json") configs.push_back(entry.path());
      }
    }
    std::sort(configs.begin() + 1, configs.end());
    for (const auto& path : configs) {
      const auto json = nlohmann::json::parse(ReadAll(path), nullptr, false);
      const auto text = json.is_object() ? json.find("chat_template") : json.end();
      if (text != json.end() && text->is_string()) sources.push_back(*text);
    }
    for (const std::string& text : sources) {
      auto parsed = ChatTemplate::Parse(text);
      if (!parsed) continue;
      templates.push_back(std::move(*parsed));
      engines.push_back(std::make_unique<FakeEngine>(tokenizer.get(), templates.back().get()));
      services.push_back(*Service::Make({}, *engines.back()));
    }
  }
};

std::string Spread(std::string_view input) {
  std::string body;
  for (size_t at = 0; at < input.size() && body.size() < kMaxBody;) {
    const size_t end = input.find('\x02', at);
    if (input[at] != '\x01' || at + 3 > input.size() || end == input.npos || end < at + 3) {
      body += input[at++];
      continue;
    }
    const size_t times =
        static_cast<uint8_t>(input[at + 1]) << 8 | static_cast<uint8_t>(input[at + 2]);
    const std::string_view unit = input.substr(at + 3, end - at - 3);
    for (size_t i = 0; i < times && !unit.empty() && body.size() < kMaxBody; ++i) body += unit;
    at = end + 1;
  }
  body.resize(std::min(body.size(), kMaxBody));
  return body;
}

}  // namespace
}  // namespace kvasir

KV_FUZZ_TARGET(request)(const uint8_t* data, size_t size) {
  using namespace kvasir;
  static RequestWorld world;
  static constexpr const char* kPaths[] = {
      "/v1/chat/completions", "/apply-template", "/v1/completions", "/tokenize", "/detokenize",
      "/completion",          "/v1/messages",    "/v1/responses",   "/api/chat"};
  if (size < 2) return 0;
  Service& service = *world.services[data[0] % world.services.size()];
  HttpRequest request;
  request.method = "POST";
  request.target = kPaths[data[1] % std::size(kPaths)];
  request.body = Spread({reinterpret_cast<const char*>(data) + 2, size - 2});
  MemoryQuota quota(kRequestQuotaBytes);
  QuotaShare share;
  const CpuLimit limit;
  const Outcome outcome = service.Prepare(request, quota, &share);
  limit.Check(request.body.size());
  share = QuotaShare();
  KV_CHECK(quota.taken_bytes() == 0);  // everything is returned after the outcome's end
  if (const auto* response = std::get_if<HttpResponse>(&outcome)) {
    KV_CHECK(response->status != 500);
  } else {
    const auto& start = std::get<GenerationStart>(outcome);
    KV_CHECK(!start.requests.empty() && !start.requests[0].prompt.empty());
  }
  return 0;
}
