#include "hub/hub_settings.h"

#include <algorithm>
#include <cstdlib>

#include "base/ascii.h"
#include "base/mapped_file.h"
#include "base/result.h"

namespace kvasir::hub {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxTokenBytes = 4096;

// nullopt where no variable is set, or only to "".
std::optional<std::string> Env(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return std::nullopt;
}

// Puts the home folder in the place of a leading '~'.
fs::path Expand(const std::string& path) {
  const auto home = Env({"HOME"});
  if (!home || (path != "~" && !path.starts_with("~/"))) return path;
  return fs::path(*home + path.substr(1));
}

Result<fs::path> HfHome() {
  if (const auto home = Env({"HF_HOME"})) return Expand(*home);
  if (const auto service = Env({"CACHE_DIRECTORY"})) {  // of systemd; a list with colons
    return fs::path(service->substr(0, service->find(':'))) / "huggingface";
  }
  if (const auto xdg = Env({"XDG_CACHE_HOME"})) return Expand(*xdg) / "huggingface";
  if (const auto home = Env({"HOME"})) return fs::path(*home) / ".cache/huggingface";
  return Fail(Code::kInvalidArgument,
              "no folder for models: HOME is not set; set it, HF_HOME or HF_HUB_CACHE");
}

bool IsTrue(std::string_view text) {
  const std::string lower = LowerAscii(text);
  return lower == "1" || lower == "on" || lower == "yes" || lower == "true";
}

// Removes spaces around a token. An error for what cannot be in a header.
Result<std::optional<std::string>> CleanToken(const std::string& text, const std::string& source) {
  std::string token(Trimmed(text));
  if (token.empty()) return std::nullopt;
  if (std::ranges::any_of(token, [](char c) { return c <= ' ' || c > '~'; })) {
    return Fail(Code::kInvalidArgument, "{}: is not a token: it has spaces or odd characters",
                source);
  }
  return token;
}

Result<std::optional<std::string>> ReadToken() {
  if (const auto given = Env({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})) {
    return CleanToken(*given, "HF_TOKEN");
  }
  fs::path path;
  if (const auto given = Env({"HF_TOKEN_PATH"})) {
    path = Expand(*given);
  } else {
    KV_ASSIGN(const fs::path home, HfHome());
    path = home / "token";
  }
  const auto text = ReadTextFile(path, kMaxTokenBytes);
  if (!text && text.error().code == Code::kNotFound) return std::nullopt;
  if (!text) return tl::unexpected(text.error());
  return CleanToken(*text, path.string());
}

Result<std::string> ReadEndpoint() {
  std::string endpoint = Env({"HF_ENDPOINT"}).value_or("https://huggingface.co");
  while (endpoint.ends_with('/')) endpoint.pop_back();
  const bool is_url = endpoint.starts_with("https://") || endpoint.starts_with("http://");
  const bool is_plain = std::ranges::all_of(endpoint, [](char c) { return c > ' ' && c <= '~'; });
  if (is_url && is_plain && endpoint.find_first_of("@?#") == endpoint.npos) return endpoint;
  return Fail(Code::kInvalidArgument,
              "HF_ENDPOINT: '{}' is not the address of a hub; give https://HOST", endpoint);
}

}  // namespace

Result<fs::path> HubCacheFolder() {
  if (const auto folder = Env({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})) return Expand(*folder);
  KV_ASSIGN(const fs::path home, HfHome());
  return home / "hub";
}

bool MayHaveToken(std::string_view endpoint) {
  if (endpoint.starts_with("https://")) return true;
  const std::string_view rest = endpoint.substr(std::string_view("http://").size());
  const std::string_view place = rest.substr(0, rest.find('/'));
  if (place.starts_with("[::1]")) return true;
  const std::string_view host = place.substr(0, place.find(':'));
  const bool is_address = host.find_first_not_of("0123456789.") == host.npos;
  return host == "localhost" || (is_address && host.starts_with("127."));
}

Result<HubSettings> ReadHubSettings() {
  HubSettings settings;
  KV_ASSIGN(settings.cache, HubCacheFolder());
  KV_ASSIGN(settings.endpoint, ReadEndpoint());
  KV_ASSIGN(settings.token, ReadToken());
  if (settings.token && !MayHaveToken(settings.endpoint)) {
    settings.token.reset();
    settings.warning = "the token is not sent to " + settings.endpoint +
                       ": anybody on the way could read it; give an https address in HF_ENDPOINT";
  }
  settings.ca_file = Env({"SSL_CERT_FILE", "CURL_CA_BUNDLE"});
  settings.ca_folder = Env({"SSL_CERT_DIR"});
  settings.is_offline = IsTrue(Env({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}).value_or(""));
  return settings;
}

}  // namespace kvasir::hub
