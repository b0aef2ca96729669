// Grammars at work: reads and writes one JSON object per line. tests/schema_test.py checks its
// texts with PyPI jsonschema. In: {schema or gbnf or regex, strict, seed, samples, max_bytes} or
// {..., texts}. Out: {samples: [texts of the grammar, drawn byte by byte]} or {matches: [of texts]}
// or {error}.
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "grammar/grammar_text.h"
#include "grammar/matcher.h"
#include "grammar/sample_for_test.h"
#include "grammar/token_masks.h"

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kClosing = "}]\",:0123456789ntf";

Result<std::shared_ptr<const Grammar>> Compile(const Json& in) {
  if (in.contains("gbnf"))
    return CompileGrammarText(FormatLanguage::kGbnf, in["gbnf"].get<std::string>());
  if (in.contains("regex"))
    return CompileGrammarText(FormatLanguage::kRegularExpression, in["regex"].get<std::string>());
  return CompileGrammarText(
      in.value("strict", false) ? FormatLanguage::kStrictJsonSchema : FormatLanguage::kJsonSchema,
      in["schema"].dump());
}

Json LegalTokens(const std::shared_ptr<const Grammar>& grammar, const Json& in) {
  std::vector<std::string> tokens;
  for (const auto& hex : in["tokens"]) {
    const auto digits = hex.get<std::string>();
    std::string bytes;
    for (size_t i = 0; i < digits.size(); i += 2) {
      bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
    }
    tokens.push_back(bytes);
  }
  const auto end = static_cast<TokenId>(tokens.size());
  tokens.emplace_back();
  TokenMasks masks(std::make_shared<const TokenTrie>(tokens, std::vector<TokenId>{end}), 1 << 20);
  std::vector<uint64_t> words(MaskWords(masks.trie().num_tokens()));
  Matcher matcher(grammar);
  Json legal = Json::array();
  const auto add = [&] {
    matcher.Mask(masks, words);
    Json ids = Json::array();
    for (TokenId id = 0; id <= end; ++id) {
      if (IsLegal(words, id)) ids.push_back(id);
    }
    legal.push_back(ids);
  };
  add();
  for (const auto& id : in["path"]) {
    if (!matcher.Advance(tokens[id.get<size_t>()])) return {{"error", "a token is not legal"}};
    add();
  }
  return {{"legal", legal}};
}

Json Answer(const Json& in) {
  const auto grammar = Compile(in);
  if (!grammar) return {{"error", grammar.error().message}};
  if (in.contains("tokens")) return LegalTokens(*grammar, in);
  if (in.contains("texts")) {
    Json matches = Json::array();
    for (const auto& text : in["texts"]) {
      Matcher matcher(*grammar);
      matches.push_back(matcher.Advance(text.get<std::string>()) && matcher.Accepts());
    }
    return {{"matches", matches}};
  }
  Random random(in.value("seed", uint64_t{0}));
  Json samples = Json::array();
  for (int i = in.value("samples", 1); i > 0; --i) {
    const auto text = SampleText(*grammar, random, in.value("max_bytes", size_t{2000}), kClosing);
    if (text) samples.push_back(*text);
  }
  return {{"samples", samples}};
}

}  // namespace
}  // namespace kvasir

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << kvasir::Answer(nlohmann::ordered_json::parse(line)).dump() << std::endl;
  }
}
