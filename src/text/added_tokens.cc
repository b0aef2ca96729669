#include "text/added_tokens.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/result.h"
#include "base/utf8.h"
#include "text/tokenizer_json.h"

namespace kvasir {
namespace {

constexpr size_t kMaxTokenBytes = 1024;  // a search costs at most this per byte of text
constexpr size_t kMaxTokens = 1 << 20;

// Templates write these too, but inside of a turn, so a user who writes one forges no turn.
constexpr std::string_view kInAnswers[] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};

// `<|user|>`, and the wide bars of DeepSeek: turns in all families, where the file does not call
// them special either.
bool LooksLikeMark(std::string_view content) {
  return (content.starts_with("<|") && content.ends_with("|>")) ||
         (content.starts_with("<｜") && content.ends_with("｜>"));
}

char32_t CharBefore(std::string_view text, size_t end) {
  size_t pos = StartOfCharBefore(text, end);
  return NextChar(text, &pos);
}

char32_t CharAt(std::string_view text, size_t pos) { return NextChar(text, &pos); }

bool InsideWord(std::string_view text, size_t begin, size_t end) {
  return (begin > 0 && IsWordChar(CharBefore(text, begin))) ||
         (end < text.size() && IsWordChar(CharAt(text, end)));
}

size_t BeginOfSpaces(std::string_view text, size_t end) {
  while (end > 0 && IsWhitespace(CharBefore(text, end))) end = StartOfCharBefore(text, end);
  return end;
}

size_t EndOfSpaces(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    size_t pos = begin;
    if (!IsWhitespace(NextChar(text, &pos))) break;
    begin = pos;
  }
  return begin;
}

Result<AddedToken> ParseToken(const nlohmann::json& value) {
  if (!value.is_object()) {
    return Fail(Code::kCorruption, "tokenizer.json: an added token is not an object");
  }
  AddedToken token;
  KV_ASSIGN(token.content, StringField(value, "content", ""));
  if (token.content.size() > kMaxTokenBytes) {
    return Fail(Code::kCorruption,
                "tokenizer.json: added token of {} bytes; at most {} are supported",
                token.content.size(), kMaxTokenBytes);
  }
  KV_ASSIGN(token.special, BoolField(value, "special", false));
  KV_ASSIGN(token.normalized, BoolField(value, "normalized", !token.special));
  KV_ASSIGN(token.single_word, BoolField(value, "single_word", false));
  KV_ASSIGN(token.lstrip, BoolField(value, "lstrip", false));
  KV_ASSIGN(token.rstrip, BoolField(value, "rstrip", false));
  token.blank = !token.special && EndOfSpaces(token.content, 0) == token.content.size();
  return token;
}

}  // namespace

Result<AddedTokens> AddedTokens::Parse(const nlohmann::json& value, const Bpe& bpe,
                                       const Normalizer& normalizer, std::string_view bos,
                                       std::string_view eos) {
  AddedTokens added;
  if (value.is_null()) return added;
  if (!value.is_array() || value.size() > kMaxTokens) {
    return Fail(Code::kCorruption, "tokenizer.json: added_tokens is not an array, or too long");
  }
  auto next_id = static_cast<TokenId>(bpe.num_tokens());
  for (const auto& item : value) {
    KV_ASSIGN(AddedToken token, ParseToken(item));
    if (token.content.empty()) continue;
    token.control = token.special || token.content == bos || token.content == eos;
    const auto [it, is_new] = added.by_content_.emplace(token.content, added.tokens_.size());
    if (!is_new) {  // the later one counts
      token.id = added.tokens_[it->second].id;
      added.tokens_[it->second] = std::move(token);
      continue;
    }
    const auto known = bpe.IdOf(token.content);
    token.id = known ? *known : next_id++;
    added.by_id_[token.id] = added.tokens_.size();
    added.tokens_.push_back(std::move(token));
  }
  for (size_t i = 0; i < added.tokens_.size(); ++i) {
    const AddedToken& token = added.tokens_[i];
    MarkedText content{token.content, ""};
    if (token.normalized) KV_TRY(normalizer.Apply(&content));
    if (content.text.empty() || content.text.size() > kMaxTokenBytes) continue;
    (token.normalized ? added.normalized_ : added.plain_)
        .Add(content.text, static_cast<int32_t>(i));
  }
  return added;
}

void AddedTokens::Trie::Add(std::string_view text, int32_t token) {
  if (nodes.empty()) nodes.emplace_back();
  starts[static_cast<uint8_t>(text[0])] = true;
  uint32_t at = 0;
  for (char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    auto& children = nodes[at].children;
    auto it =
        std::lower_bound(children.begin(), children.end(), std::pair<uint8_t, uint32_t>(byte, 0));
    if (it == children.end() || it->first != byte) {
      it = children.emplace(it, byte, static_cast<uint32_t>(nodes.size()));
      at = it->second;
      nodes.emplace_back();
    } else {
      at = it->second;
    }
  }
  nodes[at].token = token;
}

size_t AddedTokens::Trie::NextStart(std::string_view text, size_t pos) const {
  if (nodes[0].children.size() == 1) {  // "<" in most vocabularies
    return std::min(text.find(static_cast<char>(nodes[0].children[0].first), pos), text.size());
  }
  while (pos < text.size() && !starts[static_cast<uint8_t>(text[pos])]) ++pos;
  return pos;
}

std::pair<size_t, int32_t> AddedTokens::Trie::Longest(std::string_view text, size_t pos) const {
  std::pair<size_t, int32_t> best{0, -1};
  uint32_t at = 0;
  for (size_t i = pos; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    const auto& children = nodes[at].children;
    const auto it =
        std::lower_bound(children.begin(), children.end(), std::pair<uint8_t, uint32_t>(byte, 0));
    if (it == children.end() || it->first != byte) break;
    at = it->second;
    if (nodes[at].token >= 0) best = {i + 1 - pos, nodes[at].token};
  }
  return best;
}

bool AddedTokens::Counts(const AddedToken& token, const MarkedText& text, size_t begin, size_t end,
                         ParseSpecial parse, LiteralRule& literal) const {
  if (token.control && parse == ParseSpecial::kNo) return false;
  if (!text.literal.empty()) {
    const auto flags = std::string_view(text.literal).substr(begin, end - begin);
    if (flags.find('\1') != flags.npos && !literal.Counts(token)) return false;
  }
  return !token.single_word || !InsideWord(text.text, begin, end);
}

bool LiteralRule::Counts(const AddedToken& token) {
  if (token.blank) return true;
  if (token.control || written_.empty() || LooksLikeMark(token.content)) return false;
  const auto [known, is_new] = known_.try_emplace(token.id, false);
  if (is_new) {
    known->second = std::ranges::find(kInAnswers, token.content) != std::end(kInAnswers) ||
                    written_.find(token.content) == written_.npos;
  }
  return known->second;
}

Status AddedTokens::Split(const MarkedText& marked, Stage stage, ParseSpecial parse,
                          LiteralRule& literal,
                          const std::function<Status(const Part&)>& visit) const {
  const Trie& trie = TrieOf(stage);
  const std::string_view text = marked.text;
  size_t done = 0;
  for (size_t pos = 0; pos < text.size() && !trie.nodes.empty();) {
    pos = trie.NextStart(text, pos);
    if (pos == text.size()) break;
    const auto [length, index] = trie.Longest(text, pos);
    if (length == 0) {
      ++pos;
      continue;
    }
    size_t begin = pos, end = pos + length;
    pos = end;  // the search goes on after the match even if the match does not count
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    if (!Counts(token, marked, begin, end, parse, literal)) continue;
    if (token.lstrip) begin = std::max(BeginOfSpaces(text, begin), done);
    if (token.rstrip) end = EndOfSpaces(text, end);
    if (begin >= end) continue;  // another token has swallowed these spaces
    if (done < begin) KV_TRY(visit({done, begin, std::nullopt}));
    KV_TRY(visit({begin, end, token.id}));
    done = end;
  }
  if (done < text.size()) KV_TRY(visit({done, text.size(), std::nullopt}));
  return {};
}

const AddedToken* AddedTokens::Find(TokenId id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : &tokens_[it->second];
}

const AddedToken* AddedTokens::Find(std::string_view content) const {
  const auto it = by_content_.find(std::string(content));
  return it == by_content_.end() ? nullptr : &tokens_[it->second];
}

}  // namespace kvasir
