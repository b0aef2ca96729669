#include "text/languages.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/ascii.h"
#include "base/check.h"
#include "base/json_object.h"
#include "base/nearest.h"
#include "base/result.h"
#include "text/language_codes.h"
#include "text/tokenizer_json.h"

namespace kvasir {
namespace {

// Splits into language and script: "zho" and "Hant" of zho_Hant, "zh" and "Hant" of zh-Hant, "fr"
// and "" of fr.
std::pair<std::string_view, std::string_view> SplitScript(std::string_view code) {
  const size_t at = code.find_first_of("_-");
  if (at == code.npos) return {code, {}};
  return {code.substr(0, at), code.substr(at + 1)};
}

std::string_view FirstWord(std::string_view text) { return text.substr(0, text.find(' ')); }

// Gives each language its code. Of those with the same code the later ones get their script too.
void NameCodes(std::vector<Language>* languages) {
  std::vector<std::string_view> taken;
  for (Language& language : *languages) {
    const auto [base, script] = SplitScript(language.name);
    const std::string_view same = CodesLike(base);
    const std::string_view code = same.empty() ? base : FirstWord(same);
    language.code = code;
    if (std::ranges::find(taken, code) != taken.end()) {
      language.code.append("-").append(script.empty() ? base : script);
    }
    taken.push_back(code);
  }
}

}  // namespace

Languages Languages::Of(const Tokenizer& tokenizer) {
  Languages languages;
  const auto take = [&](std::span<const std::string_view> names, std::string_view around) {
    for (const std::string_view name : names) {
      std::string text(around);
      text.append(name).append(around);
      const auto id = tokenizer.IdOf(text);
      if (!id || !tokenizer.IsSpecial(*id)) continue;
      languages.all_.push_back({.name = std::string(name), .code = "", .id = *id});
    }
  };
  take(M2mLanguages(), "__");  // has those of WMT21 too
  if (languages.empty()) take(NllbLanguages(), "");
  NameCodes(&languages.all_);
  std::ranges::sort(languages.all_, {}, &Language::id);
  return languages;
}

const Language* Languages::FindByCode(std::string_view code) const {
  const auto [base, script] = SplitScript(code);
  const std::string_view same = CodesLike(base);
  for (const Language& language : all_) {
    const auto [its_base, its_script] = SplitScript(language.name);
    const bool is_base = its_base == base || (!same.empty() && CodesLike(its_base) == same);
    if (is_base && (script.empty() || LowerAscii(its_script) == script)) return &language;
  }
  return nullptr;
}

Result<Language> Languages::Find(std::string_view code) const {
  const std::string lower = LowerAscii(code);
  std::vector<std::string> known;
  for (const Language& language : all_) {
    if (lower == LowerAscii(language.name) || lower == LowerAscii(language.code)) return language;
    known.push_back(language.name);
  }
  if (const Language* found = FindByCode(lower)) return *found;
  std::string list;
  for (const std::string& name : known) list.append(list.empty() ? "" : ", ").append(name);
  for (const Language& language : all_) known.push_back(language.code);
  std::string shown;
  for (const char c : code.substr(0, 40)) shown.push_back(c >= ' ' && c <= '~' ? c : '?');
  const auto nearest = Nearest(lower, known);
  return Fail(Code::kInvalidArgument, "unknown language '{}'{} (known: {})", shown,
              nearest ? "; did you mean '" + *nearest + "'?" : "", list);
}

Result<std::vector<TokenId>> EncodeSource(const Tokenizer& tokenizer, std::string_view text,
                                          const SourceFrame& frame, size_t max_tokens) {
  const size_t others = frame.before.size() + frame.after.size();
  if (max_tokens < others) {
    return Fail(Code::kExhausted, "a source has at least {} tokens", others);
  }
  EncodeOptions options;
  options.add_special = options.parse_special = false;
  options.max_tokens = max_tokens - others;
  options.literal = {{0, text.size()}};
  KV_ASSIGN(std::vector<TokenId> ids, tokenizer.sources().Encode(text, options));
  ids.insert(ids.begin(), frame.before.begin(), frame.before.end());
  ids.insert(ids.end(), frame.after.begin(), frame.after.end());
  return ids;
}

SourceFrame FrameOf(const Tokenizer& tokenizer, TokenId language, LanguagePlace place) {
  KV_CHECK(tokenizer.eos());
  if (place == LanguagePlace::kBehind) return {.before = {}, .after = {*tokenizer.eos(), language}};
  return {.before = {language}, .after = {*tokenizer.eos()}};
}

Result<LanguagePlace> LanguagePlaceOf(std::string_view tokenizer_config_json) {
  if (tokenizer_config_json.empty()) return LanguagePlace::kInFront;
  constexpr const char* kFile = "tokenizer_config.json";
  KV_ASSIGN(const nlohmann::json config, ParseJsonObject(tokenizer_config_json, kFile));
  KV_ASSIGN(const bool legacy, BoolField(config, "legacy_behaviour", false, kFile));
  return legacy ? LanguagePlace::kBehind : LanguagePlace::kInFront;
}

}  // namespace kvasir
