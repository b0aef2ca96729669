#include "server/option_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "access/browser_rules.h"
#include "base/result.h"
#include "base/utf8.h"
#include "observe/span_exporter.h"

namespace kvasir {
namespace {

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

Status CheckName(const char* field, const std::string& name) {
  if (!name.empty() && FirstInvalidUtf8(name) == name.size() &&
      std::ranges::none_of(name, IsControl)) {
    return {};
  }
  // The message does not show the name: it could have control codes for the terminal.
  return FailField(Code::kInvalidArgument, field,
                   "a name is empty, is not UTF-8 or has a control character; give another, or "
                   "leave the flag out");
}

}  // namespace

std::optional<std::string> KeyFault(std::string_view key) {
  if (key.empty()) return "is empty";
  if (key.size() > kMaxKeyBytes) {
    return fmt::format("has {} characters; at most {} are allowed", key.size(), kMaxKeyBytes);
  }
  const auto bad = std::ranges::find_if(key, [](char c) { return c <= ' ' || c > '~'; });
  if (bad == key.end()) return std::nullopt;
  const char* what = *bad == ' '                         ? "a space"
                     : static_cast<uint8_t>(*bad) >= 128 ? "a character that is not ASCII"
                                                         : "a control character";
  return fmt::format("has {} at byte {}, which a header cannot carry", what, bad - key.begin() + 1);
}

Status CheckOptions(const ServerOptions& options) {
  // An empty name would mean every address, which a user with an empty --host does not want.
  const auto is_none = [](const std::string& host) {
    return host.empty() || host.find('\0') != std::string::npos;
  };
  if (options.hosts.empty() || std::ranges::any_of(options.hosts, is_none)) {
    return FailField(Code::kInvalidArgument, "host",
                     "is empty; give an address, such as 127.0.0.1 (0.0.0.0: all networks)");
  }
  for (const std::string& alias : options.aliases) KV_TRY(CheckName("alias", alias));
  for (const std::string& tag : options.tags) KV_TRY(CheckName("tags", tag));
  for (size_t i = 0; i < options.api_keys.size(); ++i) {
    if (const auto fault = KeyFault(options.api_keys[i])) {
      return FailField(Code::kInvalidArgument, "api_key", "key {} of {} {}", i + 1,
                       options.api_keys.size(), *fault);
    }
  }
  const auto fault = options.admin_key ? KeyFault(*options.admin_key) : std::nullopt;
  if (fault) return FailField(Code::kInvalidArgument, "admin_key", "the key {}", *fault);
  if (options.otlp_traces_endpoint) {
    KV_TRY(ParseCollectorAddress(*options.otlp_traces_endpoint));
  }
  std::error_code error;
  if (options.lora_dir && !std::filesystem::is_directory(*options.lora_dir, error)) {
    return FailField(Code::kInvalidArgument, "lora_dir", "'{}' is not a folder; give one",
                     *options.lora_dir);
  }
  KV_TRY(CheckCorsOrigins(options.cors_origins));
  return CheckAllowedHosts(options.allowed_hosts);
}

}  // namespace kvasir
