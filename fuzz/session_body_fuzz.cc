// Calls of sessions with any bodies: none ends the server, none that is refused changes a session,
// and nothing is left when the sessions are gone. Input: for each call a byte that chooses it, two
// of its body's length, and the body.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/check.h"
#include "fuzz_target.h"
#include "server/fake_engine_for_test.h"
#include "server/service.h"
#include "source_paths.h"

namespace kvasir {
namespace {

constexpr uint64_t kSessionQuotaBytes = 32 << 20;
constexpr size_t kMaxCalls = 32;

std::string ReadDemoFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct SessionWorld {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template = *ChatTemplate::Parse(kTinyTemplate);
  std::unique_ptr<FakeEngine> engine;
  std::unique_ptr<Service> service;
  MemoryQuota quota{kSessionQuotaBytes};

  SessionWorld() {
    const auto demo = std::filesystem::path(KVASIR_SOURCE_DIR) / "models/kvasir-demo";
    tokenizer = *Tokenizer::Parse(ReadDemoFile(demo / "tokenizer.json"),
                                  ReadDemoFile(demo / "tokenizer_config.json"));
    engine = std::make_unique<FakeEngine>(tokenizer.get(), chat_template.get());
    service = *Service::Make({}, *engine);
  }

  // Returns the status and the body of an answer; 0: a generation, which is dropped.
  std::pair<int, std::string> Ask(const std::string& method, const std::string& target,
                                  std::string body) {
    HttpRequest request;
    request.method = method;
    request.target = target;
    request.body = std::move(body);
    auto turn = service->AwaitTurn(request, [] {});
    if (!turn) return {HttpStatus(turn.error()), ""};
    QuotaShare share;
    Outcome outcome = service->Prepare(request, quota, &share, *turn);
    turn->reset();
    std::pair<int, std::string> told{0, ""};
    const auto tell = [&told](HttpResponse response) {
      told = {response.status, response.body + Joined(std::move(response.rest))};
    };
    if (auto* response = std::get_if<HttpResponse>(&outcome)) tell(std::move(*response));
    if (auto* later = std::get_if<LaterAnswer>(&outcome)) later->begin(tell);
    KV_CHECK(told.first != 500);
    return told;
  }
};

}  // namespace
}  // namespace kvasir

KV_FUZZ_TARGET(session_body)(const uint8_t* data, size_t size) {
  using namespace kvasir;
  static SessionWorld world;
  static constexpr std::pair<const char*, const char*> kCalls[] = {
      {"POST", "/messages"}, {"POST", "/generate"}, {"PUT", "/messages/0"}, {"PUT", "/messages/1"},
      {"PUT", "/system"},    {"POST", "/truncate"}, {"POST", "/forget"},    {"POST", "/fork"},
      {"DELETE", ""},        {"GET", "?ids=true"},
  };
  std::string session = "/v1/sessions/none";
  for (size_t calls = 0; size >= 3 && calls < kMaxCalls; ++calls) {
    const size_t length = std::min<size_t>(size - 3, data[1] << 8 | data[2]);
    std::string body(reinterpret_cast<const char*>(data) + 3, length);
    const size_t call = data[0] % (std::size(kCalls) + 1);
    data += 3 + length;
    size -= 3 + length;
    if (call == std::size(kCalls)) {
      const auto [status, text] = world.Ask("POST", "/v1/sessions", std::move(body));
      if (status == 201) {
        session = "/v1/sessions/" + nlohmann::json::parse(text).at("id").get<std::string>();
      }
      continue;
    }
    const std::string before = world.Ask("GET", session, "").second;
    const auto [method, end] = kCalls[call];
    const auto [status, text] = world.Ask(method, session + end, std::move(body));
    const bool may_change = status == 200 || status == 201;
    KV_CHECK(may_change || world.Ask("GET", session, "").second == before);
  }
  world.Ask("DELETE", "/v1/cache", "");
  KV_CHECK(nlohmann::json::parse(world.Ask("GET", "/v1/sessions", "").second).at("data").empty());
  KV_CHECK(world.quota.taken_bytes() == 0);
  return 0;
}
