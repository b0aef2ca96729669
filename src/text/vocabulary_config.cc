#include "text/vocabulary_config.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/json_object.h"
#include "base/result.h"
#include "text/tokenizer_json.h"

namespace kvasir {
namespace {

using nlohmann::json;

// So that a file of a few lines cannot ask for much memory.
constexpr uint64_t kMaxIdGap = 1u << 16;   // of ids without a token
constexpr uint64_t kMaxFileId = 1u << 20;  // four times the largest vocabulary known

constexpr const char* kConfigFile = "tokenizer_config.json";
constexpr const char* kSpecialsFile = "special_tokens_map.json";

Result<json> ParseFile(std::string_view text, const char* name) {
  if (text.empty()) return json::object();
  return ParseJsonObject(text, name);
}

// Puts a token where the file says it is.
Status Place(uint64_t id, VocabularyToken token, const char* file, Vocabulary* vocabulary) {
  auto& tokens = vocabulary->tokens;
  if (id > std::min(tokens.size() + kMaxIdGap, kMaxFileId)) {
    return Fail(Code::kCorruption, "{}: the id {} of an added token is far beyond the {} tokens",
                file, id, tokens.size());
  }
  if (id >= tokens.size()) tokens.resize(id + 1);
  VocabularyToken& there = tokens[id];
  if (!there.text.empty() && there.kind == TokenKind::kUnknown) token.kind = TokenKind::kUnknown;
  token.score = there.score;
  there = std::move(token);
  return {};
}

// Reads {"32000": {"content": ..., "special": ..., "rstrip": ...}}
Status PlaceDecoder(const json& config, Vocabulary* vocabulary) {
  const auto found = config.find("added_tokens_decoder");
  if (found == config.end() || !found->is_object()) return {};
  for (const auto& entry : found->items()) {
    const std::string& key = entry.key();
    uint64_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || !entry.value().is_object()) {
      return Fail(Code::kCorruption, "{}: added_tokens_decoder has an entry that is not a token",
                  kConfigFile);
    }
    VocabularyToken token;
    KV_ASSIGN(token.text, StringField(entry.value(), "content", "", kConfigFile));
    KV_ASSIGN(const bool special, BoolField(entry.value(), "special", false, kConfigFile));
    KV_ASSIGN(token.rstrip, BoolField(entry.value(), "rstrip", false, kConfigFile));
    token.kind = special ? TokenKind::kControl : TokenKind::kUserDefined;
    if (token.text.empty()) continue;
    KV_TRY(Place(id, std::move(token), kConfigFile, vocabulary));
  }
  return {};
}

// Reads {"<|im_start|>": 32000}, which old folders have instead.
Status PlaceAdded(const json& added, Vocabulary* vocabulary) {
  constexpr const char* kFile = "added_tokens.json";
  for (const auto& entry : added.items()) {
    const std::string& text = entry.key();
    if (!entry.value().is_number_unsigned()) {
      return Fail(Code::kCorruption, "{}: the id of '{}' is not a whole number", kFile,
                  text.substr(0, 40));
    }
    const auto id = entry.value().get<uint64_t>();
    if (text.empty() || (id < vocabulary->tokens.size() && vocabulary->tokens[id].text == text)) {
      continue;
    }
    const bool marker = text.starts_with('<') && text.ends_with('>');
    KV_TRY(Place(id, {text, marker ? TokenKind::kControl : TokenKind::kUserDefined}, kFile,
                 vocabulary));
  }
  return {};
}

// Reads the id of config[name], which is a text, an object with its content, or null (no id).
Status ReadSpecial(const json& config, const char* file, const char* name,
                   const Vocabulary& vocabulary, std::optional<TokenId>* id) {
  const auto found = config.find(name);
  if (found == config.end()) return {};
  std::string text;
  if (found->is_string()) {
    text = found->get<std::string>();
  } else if (found->is_object()) {
    KV_ASSIGN(text, StringField(*found, "content", "", file));
  }
  id->reset();
  const auto token = std::ranges::find(vocabulary.tokens, text, &VocabularyToken::text);
  if (!text.empty() && token != vocabulary.tokens.end()) {
    *id = static_cast<TokenId>(token - vocabulary.tokens.begin());
  }
  return {};
}

Status ReadFlag(const json& config, const char* name, std::optional<bool>* flag) {
  const auto found = config.find(name);
  if (found == config.end() || found->is_null()) return {};
  KV_ASSIGN(*flag, BoolField(config, name, false, kConfigFile));
  return {};
}

}  // namespace

Status Apply(const VocabularyConfig& files, Vocabulary* vocabulary) {
  KV_ASSIGN(const json config, ParseFile(files.tokenizer_config_json, kConfigFile));
  KV_ASSIGN(const json specials, ParseFile(files.special_tokens_json, kSpecialsFile));
  KV_ASSIGN(const json added, ParseFile(files.added_tokens_json, "added_tokens.json"));
  KV_TRY(PlaceAdded(added, vocabulary));
  KV_TRY(PlaceDecoder(config, vocabulary));
  using Source = std::pair<const char*, const json*>;
  for (const auto& [file, source] :
       {Source(kSpecialsFile, &specials), Source(kConfigFile, &config)}) {
    // The later one counts.
    KV_TRY(ReadSpecial(*source, file, "bos_token", *vocabulary, &vocabulary->bos));
    KV_TRY(ReadSpecial(*source, file, "eos_token", *vocabulary, &vocabulary->eos));
  }
  KV_TRY(ReadFlag(config, "add_bos_token", &vocabulary->add_bos));
  KV_TRY(ReadFlag(config, "add_eos_token", &vocabulary->add_eos));
  std::optional<bool> prefix, legacy;
  KV_TRY(ReadFlag(config, "add_prefix_space", &prefix));
  KV_TRY(ReadFlag(config, "legacy", &legacy));
  if (prefix == false) vocabulary->space_prefix = SpacePrefix::kNever;
  if (legacy == false && vocabulary->space_prefix == SpacePrefix::kEveryText) {
    vocabulary->space_prefix = SpacePrefix::kFirst;
  }
  return {};
}

}  // namespace kvasir
