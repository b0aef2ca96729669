// kvasir ps: asks a running server which model it has.
#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/model_tag.h"
#include "base/result.h"
#include "base/sizes.h"
#include "cli/command.h"
#include "cli/server_address.h"
#include "cli/shared_flags.h"

namespace kvasir::cli {
namespace {

constexpr const char* kPath = "/api/ps";
constexpr const char* kKeyVariable = "KVASIR_API_KEY";

std::string TextIn(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

uint64_t NumberIn(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

// Returns the key of --api-key, else of the environment; absent: neither is there.
Result<std::optional<std::string>> KeyOf(const Args& args) {
  std::optional<std::string> key = args.Text("api-key");
  const char* source = "--api-key";
  if (const char* variable = std::getenv(kKeyVariable); !key && variable && *variable != '\0') {
    key = variable;
    source = kKeyVariable;
  }
  if (key && (key->empty() || key->find_first_of(" \r\n") != key->npos)) {
    return Fail(Code::kInvalidArgument, "{}: the key is empty, or has spaces or line ends", source);
  }
  return key;
}

Result<int> RunPs(const Args& args) {
  KV_ASSIGN(const ServerAddress at, ReadUrlFlag(args));
  KV_ASSIGN(const auto key, KeyOf(args));
  KV_ASSIGN(const ServerAnswer said, AskServer(at, kPath, key));
  const auto answer = nlohmann::json::parse(said.body, nullptr, /*allow_exceptions=*/false);
  if (said.status == "401") {
    return Fail(Code::kPermissionDenied, "the server at {} {}: give --api-key KEY, or set {}",
                at.url, key ? "does not take this key" : "needs a key", kKeyVariable);
  }
  if (said.status != "200" || !answer.is_object()) {
    return Fail(Code::kUnavailable, "the server at {} answers {} to {}: it is not Kvasir's", at.url,
                said.status, kPath);
  }
  const auto models = answer.find("models");
  if (models == answer.end() || !models->is_array()) {
    return Fail(Code::kUnavailable, "the server at {} does not say which models it has", at.url);
  }
  if (args.Has("json")) {
    fmt::print("{}\n", answer.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return kExitDone;
  }
  fmt::print("{:<40} {:<12} {:>12}  {:<9} {:>8}  {}\n", "NAME", "ID", "SIZE", "PROCESSOR",
             "CONTEXT", "UNTIL");
  for (const nlohmann::json& model : *models) {
    if (!model.is_object()) continue;
    const std::string name = TextIn(model, "name");
    fmt::print("{:<40} {:<12} {:>12}  {:<9} {:>8}  {}\n", WithoutLatest(name),
               TextIn(model, "digest").substr(0, 12), FormatBytes(NumberIn(model, "size")),
               "100% CPU", NumberIn(model, "context_length"), "the server ends");
  }
  return kExitDone;
}

}  // namespace

Command PsCommand() {
  return {
      "ps",
      "which model a running server has",
      "ps --url http://127.0.0.1:8080",
      {UrlFlag(),
       {"api-key", "KEY",
        "key of the server, where it requires one (default: KVASIR_API_KEY of the environment)"},
       {"json", "", "one object, as GET /api/ps answers", FlagKind::kSwitch}},
      RunPs};
}

}  // namespace kvasir::cli
