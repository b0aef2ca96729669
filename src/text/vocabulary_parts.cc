#include "text/vocabulary_parts.h"

#include <utility>

#include "base/result.h"
#include "text/text_patterns.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr const char* kSpace = "\xE2\x96\x81";  // U+2581, SentencePiece's space

json Replace(const char* from, const char* to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

// Returns the tokens that are searched for in the text before it is cut into words.
json AddedTokensOf(const Vocabulary& vocabulary) {
  json added = json::array();
  for (const VocabularyToken& token : vocabulary.tokens) {
    const bool special = token.kind == TokenKind::kControl || token.kind == TokenKind::kUnknown;
    if (!special && token.kind != TokenKind::kUserDefined) continue;
    added.push_back({{"content", token.text},
                     {"special", special},
                     {"normalized", false},
                     {"rstrip", token.rstrip}});
  }
  return added;
}

// Removes spaces at both ends; a run of spaces becomes one.
void CollapseSpaces(json* steps) {
  steps->push_back({{"type", "Replace"}, {"pattern", {{"Regex", "^ +| +$"}}}, {"content", ""}});
  steps->push_back({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}});
}

VocabularyParts SentencePieceParts(const Vocabulary& vocabulary) {
  VocabularyParts parts;
  parts.add_bos = true;
  json normalizers = json::array();
  if (!vocabulary.charsmap.empty()) {
    const std::string& bytes = vocabulary.charsmap;
    normalizers.push_back({{"type", "Precompiled"},
                           {"precompiled_charsmap", json::binary({bytes.begin(), bytes.end()})}});
  }
  if (vocabulary.collapse_spaces) CollapseSpaces(&normalizers);
  json decoders = {Replace(kSpace, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (vocabulary.space_prefix == SpacePrefix::kFirst) {
    parts.json["pre_tokenizer"] = {
        {"type", "Metaspace"}, {"prepend_scheme", "first"}, {"split", false}};
  } else {
    if (vocabulary.space_prefix == SpacePrefix::kEveryText) {
      normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
    }
    normalizers.push_back(Replace(" ", kSpace));
  }
  if (vocabulary.space_prefix != SpacePrefix::kNever) {
    // SentencePiece takes all spaces away where it takes runs of them away; llama.cpp takes one,
    // and so does `tokenizers` in the files of models without a table.
    const bool all = !vocabulary.charsmap.empty() && vocabulary.collapse_spaces;
    decoders.push_back(
        {{"type", "Strip"}, {"content", " "}, {"start", all ? 1024u : 1u}, {"stop", 0u}});
  }
  parts.json["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}};
  parts.json["decoder"] = {{"type", "Sequence"}, {"decoders", std::move(decoders)}};
  return parts;
}

Result<VocabularyParts> ByteLevelParts(const Vocabulary& vocabulary) {
  const TextPattern* pattern = FindTextPattern(vocabulary.pre);
  if (pattern == nullptr) {
    return Fail(Code::kUnsupported,
                "{}: how its text is cut into words ('{}', tokenizer.ggml.pre) is not known; put "
                "the model's tokenizer.json beside the file (known: {})",
                vocabulary.file, vocabulary.pre.substr(0, 80), TextPatternNames());
  }
  VocabularyParts parts;
  parts.whole_words = pattern->traits.whole_words || !vocabulary.merges;
  parts.add_bos = pattern->traits.add_bos;
  if (pattern->traits.nfc) parts.json["normalizer"] = {{"type", "NFC"}};
  parts.json["pre_tokenizer"] = PreTokenizerJson(*pattern);
  parts.json["decoder"] = {{"type", "ByteLevel"}};
  return parts;
}

}  // namespace

Result<VocabularyParts> PartsOf(const Vocabulary& vocabulary) {
  VocabularyParts parts;
  if (vocabulary.kind == VocabularyKind::kSentencePiece) {
    parts = SentencePieceParts(vocabulary);
  } else {
    KV_ASSIGN(parts, ByteLevelParts(vocabulary));
  }
  parts.json["added_tokens"] = AddedTokensOf(vocabulary);
  return parts;
}

}  // namespace kvasir
