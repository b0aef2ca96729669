// HubSettings: what the environment says of the hub and its cache, as for Hugging Face's tools.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir::hub {

struct HubSettings {
  std::filesystem::path cache;       // HubCacheFolder()
  std::string endpoint;              // HF_ENDPOINT, else https://huggingface.co; no '/' at the end
  std::optional<std::string> token;  // HF_TOKEN, else the file HF_TOKEN_PATH, HF_HOME/token
  std::optional<std::string> ca_file;    // SSL_CERT_FILE, else CURL_CA_BUNDLE; absent: libcurl's
  std::optional<std::string> ca_folder;  // SSL_CERT_DIR
  bool is_offline = false;               // HF_HUB_OFFLINE
  std::string warning;                   // "" or a sentence about a token that is not used
};

// Returns HF_HUB_CACHE, HF_HOME/hub, else huggingface/hub in CACHE_DIRECTORY, XDG_CACHE_HOME or
// ~/.cache.
// kInvalidArgument: none of these is set, and HOME is not set either.
Result<std::filesystem::path> HubCacheFolder();

// kInvalidArgument: HF_ENDPOINT or the token is not valid; other errors as in ReadTextFile.
Result<HubSettings> ReadHubSettings();

// Tells whether a token may be sent to this endpoint: over TLS, or within this machine.
bool MayHaveToken(std::string_view endpoint);

}  // namespace kvasir::hub
