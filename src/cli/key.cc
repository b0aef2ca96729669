// kvasir key: makes API keys.
#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/hex.h"
#include "base/random_bytes.h"
#include "base/result.h"
#include "cli/command.h"

namespace kvasir::cli {
namespace {

Result<int> RunKey(const Args& args) {
  const std::vector<std::string> operands = args.List(kOperands);
  if (operands != std::vector<std::string>{"new"}) {
    return Fail(Code::kInvalidArgument, "{}'kvasir key new' makes a key",
                operands.empty() ? "" : "unknown word '" + operands.front() + "'; ");
  }
  std::array<uint8_t, 32> bytes;
  KV_TRY(FillRandom(bytes));
  const std::string key = "kv-" + ToHex(bytes);
  nlohmann::ordered_json entry = {{"sha256", ToHex(Sha256Of(key))}};
  if (args.Has("admin")) entry["admin"] = true;
  if (args.Has("json")) {
    fmt::print("{}\n", nlohmann::ordered_json{{"key", key}, {"entry", entry}}.dump());
    return kExitDone;
  }
  fmt::print("key    {}\nentry  {}\n", key, entry.dump());
  return kExitDone;
}

}  // namespace

Command KeyCommand() {
  return {
      "key",
      "makes an API key and its entry for the file of serve --keys",
      "key new",
      {{"admin", "", "a key of the operator, who may read about all tenants", FlagKind::kSwitch},
       {"json", "", "print one JSON object", FlagKind::kSwitch}},
      RunKey,
      "The key is shown once and stored nowhere: the entry has only its SHA-256 digest.\n",
      1};
}

}  // namespace kvasir::cli
