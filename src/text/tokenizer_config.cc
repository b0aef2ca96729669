#include "text/tokenizer_config.h"

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/json_object.h"
#include "base/result.h"
#include "text/tokenizer_json.h"

namespace kvasir {
namespace {

// Reads a token: a string or, in older files, an object with its content.
Result<std::optional<std::string>> TokenField(const nlohmann::json& config, const char* name) {
  auto it = config.find(name);
  if (it == config.end() || it->is_null()) return std::nullopt;
  if (it->is_string()) return it->get<std::string>();
  if (it->is_object()) {
    KV_ASSIGN(std::string content, StringField(*it, "content", ""));
    return content;
  }
  return Fail(Code::kCorruption, "tokenizer_config.json: {} is neither a string nor a token", name);
}

std::optional<TokenId> IdField(const nlohmann::json& config, const char* name) {
  const auto it = config.find(name);
  if (it == config.end() || !it->is_number_unsigned()) return std::nullopt;
  const auto id = it->get<uint64_t>();
  if (id > uint64_t{std::numeric_limits<TokenId>::max()}) return std::nullopt;
  return static_cast<TokenId>(id);
}

Result<TokenizerConfig> ParseFields(const nlohmann::json& json) {
  TokenizerConfig config;
  KV_ASSIGN(config.bos, TokenField(json, "bos_token"));
  KV_ASSIGN(config.eos, TokenField(json, "eos_token"));
  KV_ASSIGN(config.add_bos, BoolField(json, "add_bos_token", false));
  KV_ASSIGN(config.add_eos, BoolField(json, "add_eos_token", false));
  if (!config.bos) config.bos_id = IdField(json, "bos_token_id");
  if (!config.eos) config.eos_id = IdField(json, "eos_token_id");
  return config;
}

Result<nlohmann::json> ParseOptional(std::string_view text, const char* name) {
  if (text.empty()) return nlohmann::json::object();
  return ParseJsonObject(text, name);
}

// Returns the keys of `others` that `config` lacks. When config has "bos_token", even as null,
// neither its text nor its id is taken from `others`; the same holds for EOS.
nlohmann::json Additions(const nlohmann::json& config, const nlohmann::json& others) {
  nlohmann::json added = nlohmann::json::object();
  for (const std::string token : {"bos_token", "eos_token"}) {
    for (const std::string& key : {token, "add_" + token, token + "_id"}) {
      const bool known = config.contains(key) || (key != "add_" + token && config.contains(token));
      if (others.contains(key) && !known) added[key] = others[key];
    }
  }
  return added;
}

}  // namespace

Result<TokenizerConfig> ParseTokenizerConfig(std::string_view tokenizer_config_json,
                                             std::string_view special_tokens_json) {
  KV_ASSIGN(nlohmann::json config, ParseOptional(tokenizer_config_json, "tokenizer_config.json"));
  KV_ASSIGN(const nlohmann::json others,
            ParseOptional(special_tokens_json, "special_tokens_map.json"));
  const nlohmann::json additions = Additions(config, others);
  config.update(additions);
  KV_ASSIGN(TokenizerConfig parsed, ParseFields(config));
  parsed.decides_bos = additions.contains("add_bos_token");
  parsed.decides_eos = additions.contains("add_eos_token");
  if (!additions.empty()) parsed.additions = additions.dump();
  return parsed;
}

}  // namespace kvasir
