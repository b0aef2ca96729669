#include "text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_map>

#include "base/result.h"
#include "base/utf8.h"

namespace kvasir {
namespace {

constexpr size_t kMaxPieceBytes = 1024;  // merging by score looks at each place in a token
constexpr const char* kVocabularyFix = "put the model's tokenizer.json beside the file";

// Shows the text of a token in a message: short and printable.
std::string Shown(std::string_view text) {
  std::string shown;
  AppendLossyUtf8(text.substr(0, 40), &shown);
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20) c = '?';
  }
  return shown;
}

Status CheckToken(const Vocabulary& vocabulary, size_t id) {
  const VocabularyToken& token = vocabulary.tokens[id];
  if (token.text.size() > kMaxPieceBytes) {
    return Fail(Code::kCorruption, "{}: token {} has {} bytes, at most {} are allowed; {}",
                vocabulary.file, id, token.text.size(), kMaxPieceBytes, kVocabularyFix);
  }
  const size_t invalid = FirstInvalidUtf8(token.text);
  if (invalid != token.text.size()) {
    return Fail(Code::kCorruption, "{}: token {} is not UTF-8 at byte {}; {}", vocabulary.file, id,
                invalid, kVocabularyFix);
  }
  if (std::isnan(token.score)) {
    return Fail(Code::kCorruption, "{}: the score of token {} ('{}') is not a number; {}",
                vocabulary.file, id, Shown(token.text), kVocabularyFix);
  }
  return {};
}

}  // namespace

uint32_t Vocabulary::vocab_size() const {
  size_t size = tokens.size();
  if (num_ids) size = std::min(size, *num_ids);
  while (size > 0 && tokens[size - 1].text.empty()) --size;
  return static_cast<uint32_t>(size);
}

uint64_t Vocabulary::memory_bytes() const {
  uint64_t bytes = tokens.size() * sizeof(VocabularyToken) + charsmap.size();
  if (sources) bytes += sources->memory_bytes();
  for (const VocabularyToken& token : tokens) bytes += token.text.size();
  if (!merges) return bytes;
  bytes += merges->size() * sizeof(std::string);
  for (const std::string& merge : *merges) bytes += merge.size();
  return bytes;
}

Status CheckVocabulary(const Vocabulary& vocabulary) {
  if (vocabulary.tokens.size() > kMaxVocabulary) {
    return Fail(Code::kCorruption, "{}: {} tokens, at most {} are allowed", vocabulary.file,
                vocabulary.tokens.size(), kMaxVocabulary);
  }
  if (vocabulary.num_ids && *vocabulary.num_ids > vocabulary.tokens.size()) {
    return Fail(Code::kCorruption, "{}: {} ids, but {} tokens", vocabulary.file,
                *vocabulary.num_ids, vocabulary.tokens.size());
  }
  std::unordered_map<std::string_view, size_t> ids;
  ids.reserve(vocabulary.tokens.size());
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    KV_TRY(CheckToken(vocabulary, id));
    const std::string_view text = vocabulary.tokens[id].text;
    if (text.empty()) continue;
    const auto [first, is_new] = ids.emplace(text, id);
    if (is_new) continue;
    return Fail(Code::kCorruption, "{}: tokens {} and {} are both '{}'; {}", vocabulary.file,
                first->second, id, Shown(text), kVocabularyFix);
  }
  for (const auto& special : {vocabulary.bos, vocabulary.eos}) {
    if (!special || (*special >= 0 && static_cast<size_t>(*special) < vocabulary.tokens.size())) {
      continue;
    }
    return Fail(Code::kCorruption, "{}: the special token {} is not among the {} tokens; {}",
                vocabulary.file, *special, vocabulary.tokens.size(), kVocabularyFix);
  }
  return {};
}

void TakeUserTextsAsWritten(Vocabulary* vocabulary) {
  constexpr std::string_view kSpace = "\xE2\x96\x81";
  for (VocabularyToken& token : vocabulary->tokens) {
    if (token.kind != TokenKind::kUserDefined) continue;
    for (size_t at = token.text.find(kSpace); at != token.text.npos;
         at = token.text.find(kSpace, at)) {
      token.text.replace(at, kSpace.size(), " ");
    }
  }
}

Digest DigestOf(const Vocabulary& vocabulary) {
  Sha256 digest;
  const auto text = [&digest](std::string_view value) {
    digest.UpdateU64(value.size()).Update(value);
  };
  const auto flag = [&digest](const std::optional<bool>& value) {
    digest.UpdateU64(value ? 1 + uint64_t{*value} : 0);
  };
  text("vocabulary");
  digest.UpdateU64(static_cast<uint64_t>(vocabulary.kind)).UpdateU64(vocabulary.tokens.size());
  for (const VocabularyToken& token : vocabulary.tokens) {
    text(token.text);
    digest.UpdateU64(static_cast<uint64_t>(token.kind) << 33 | uint64_t{token.rstrip} << 32 |
                     std::bit_cast<uint32_t>(token.score));
  }
  if (vocabulary.merging != Merging::kPairs) text("unigram");
  digest.UpdateU64(vocabulary.merges ? 1 + vocabulary.merges->size() : 0);
  if (vocabulary.merges) {
    for (const std::string& merge : *vocabulary.merges) text(merge);
  }
  digest.UpdateU64(static_cast<uint64_t>(vocabulary.bos.value_or(-1)));
  digest.UpdateU64(static_cast<uint64_t>(vocabulary.eos.value_or(-1)));
  flag(vocabulary.add_bos);
  flag(vocabulary.add_eos);
  text(vocabulary.pre);
  digest.UpdateU64(static_cast<uint64_t>(vocabulary.space_prefix));
  flag(vocabulary.collapse_spaces);
  if (!vocabulary.charsmap.empty() || vocabulary.num_ids) {  // else as it was before they were read
    text(vocabulary.charsmap);
    digest.UpdateU64(vocabulary.num_ids ? 1 + *vocabulary.num_ids : 0);
  }
  if (vocabulary.sources) {
    const Digest of_sources = DigestOf(*vocabulary.sources);
    digest.Update(std::as_bytes(std::span(of_sources)));
  }
  return digest.Finish();
}

}  // namespace kvasir
