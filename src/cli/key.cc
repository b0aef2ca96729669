// kvasir key: makes API keys.
#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/hex.h"
#include "base/random_bytes.h"
#include "base/result.h"
#include "base/secret.h"
#include "cli/command.h"

namespace kvasir::cli {
namespace {

Result<int> MakeSecretFile(const Args& args, const std::vector<std::string>& operands) {
  if (operands.size() != 2) {
    return Fail(Code::kInvalidArgument, "'kvasir key {} FILE' takes one file", operands.front());
  }
  for (const char* flag : {"admin", "json"}) {
    if (args.Has(flag)) return Fail(Code::kInvalidArgument, "--{}: is for 'key new' alone", flag);
  }
  KV_TRY(MakeSecret(operands[1]));
  const bool is_fleet = operands.front() == "fleet";
  fmt::print("{}: the secret of a {}\n", operands[1],
             is_fleet ? "fleet; copy it to each machine, and keep it from all others"
                      : "server, for --secret-file; without it nothing that is kept can be read");
  return kExitDone;
}

Result<int> RunKey(const Args& args) {
  const std::vector<std::string> operands = args.List(kOperands);
  if (!operands.empty() && (operands.front() == "fleet" || operands.front() == "secret")) {
    return MakeSecretFile(args, operands);
  }
  if (operands != std::vector<std::string>{"new"}) {
    return Fail(Code::kInvalidArgument,
                "{}'kvasir key new' makes a key, 'kvasir key fleet FILE' a fleet's secret, 'kvasir "
                "key secret FILE' a server's",
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
      "makes an API key and its entry for the file of serve --keys, or a secret of a fleet or "
      "server",
      "key new | key fleet FILE | key secret FILE",
      {{"admin", "", "a key of the operator, who may read about all tenants", FlagKind::kSwitch},
       {"json", "", "print one JSON object", FlagKind::kSwitch}},
      RunKey,
      "The key is shown once and stored nowhere: the entry has only its SHA-256 digest. FILE gets "
      "32\n"
      "random bytes, for serve --fleet-secret on all machines, or for serve --secret-file.\n",
      2,
      {},
      "new fleet secret",
      "new | fleet FILE | secret FILE"};
}

}  // namespace kvasir::cli
