#include "server/option_check.h"

#include <algorithm>

#include "base/result.h"
#include "base/utf8.h"
#include "server/browser_rules.h"

namespace kvasir {
namespace {

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

Status CheckName(const std::string& name) {
  if (!name.empty() && FirstInvalidUtf8(name) == name.size() &&
      std::ranges::none_of(name, IsControl)) {
    return {};
  }
  // Not shown: it could change what the terminal shows.
  return Fail(Code::kInvalidArgument,
              "alias: a name is empty, is not UTF-8 or has a control character; give another, or "
              "leave the flag out");
}

Status CheckKey(const char* field, std::string_view key) {
  if (IsKey(key)) return {};
  return Fail(
      Code::kInvalidArgument,
      "{}: a key is empty, or has a space, a control character or one beyond ASCII, or more "
      "than {} characters; a header cannot carry it",
      field, kMaxKeyBytes);
}

}  // namespace

bool IsKey(std::string_view key) {
  return !key.empty() && key.size() <= kMaxKeyBytes &&
         std::ranges::all_of(key, [](char c) { return c > ' ' && c <= '~'; });
}

Status CheckOptions(const ServerOptions& options) {
  // The empty name means every address: nobody who leaves it empty wants to be reached by all.
  if (options.host.empty() || options.host.find('\0') != std::string::npos) {
    return Fail(Code::kInvalidArgument,
                "host: it is empty; give an address, as 127.0.0.1 (0.0.0.0: every network)");
  }
  for (const std::string& alias : options.aliases) KV_TRY(CheckName(alias));
  for (const std::string& key : options.api_keys) KV_TRY(CheckKey("api_key", key));
  if (!options.admin_key.empty()) KV_TRY(CheckKey("admin_key", options.admin_key));
  KV_TRY(CheckCorsOrigins(options.cors_origins));
  return CheckAllowedHosts(options.allowed_hosts);
}

}  // namespace kvasir
