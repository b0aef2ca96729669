// kvasir health: asks a server whether it is ready.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"
#include "cli/command.h"
#include "cli/server_address.h"

namespace kvasir::cli {
namespace {

// Returns ": " and what the body of an error says; "" where it says nothing.
std::string ReasonIn(const std::string& body) {
  const auto json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  const auto message = nlohmann::json::json_pointer("/error/message");
  if (!json.is_object() || !json.contains(message) || !json[message].is_string()) return "";
  return ": " + json[message].get<std::string>();
}

// Asks for /ready. All that goes wrong is kUnavailable, exit 1: Docker gives 2 another meaning.
Result<int> RunHealth(const Args& args) {
  KV_ASSIGN(const ServerAddress at, ReadUrlFlag(args));
  const Result<ServerAnswer> asked = AskServer(at, "/ready", {});
  if (!asked) return Fail(Code::kUnavailable, "{}", asked.error().text());
  const ServerAnswer& answer = *asked;
  if (answer.status != "200") {
    return Fail(Code::kUnavailable, "the server at {} answers {}{}", at.url, answer.status,
                ReasonIn(answer.body));
  }
  fmt::print("ready\n");
  return kExitDone;
}

}  // namespace

Command HealthCommand() {
  return {"health",
          "asks a server whether it is ready: exit 0, or 1 and why not",
          "health --url http://127.0.0.1:8080",
          {UrlFlag()},
          RunHealth,
          "It asks for /ready, which needs no key, and waits at most 5 s for the answer."};
}

}  // namespace kvasir::cli
