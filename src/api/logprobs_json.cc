#include "api/logprobs_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/hex.h"
#include "base/json_writer.h"
#include "base/utf8.h"
#include "text/byte_level.h"
#include "text/tokenizer.h"

namespace kvasir {
namespace {

using nlohmann::json;

// JSON has no -inf; this is what vLLM sends for it.
constexpr float kLowestLogprob = -9999.0f;

float Finite(float logprob) { return logprob >= kLowestLogprob ? logprob : kLowestLogprob; }

// Returns the bytes of a token of a byte-level vocabulary; nullopt when it has characters outside
// of that alphabet.
std::optional<std::string> FromByteLevel(std::string_view token) {
  std::string bytes;
  for (size_t pos = 0; pos < token.size();) {
    const std::optional<uint8_t> byte = ByteOfChar(NextChar(token, &pos));
    if (!byte) return std::nullopt;
    bytes += static_cast<char>(*byte);
  }
  return bytes;
}

// Returns the raw bytes of a token that is not whole UTF-8, from its form in the vocabulary.
std::optional<std::string> PartialBytes(std::string_view token) {
  if (token.size() == 6 && token.starts_with("<0x") && token.back() == '>') {
    if (const auto byte = HexByte(token[3], token[4], HexCase::kAny)) {
      return std::string(1, static_cast<char>(*byte));
    }
  }
  return FromByteLevel(token);
}

json BytesJson(std::string_view bytes) {
  json list = json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return list;
}

json ChatEntry(TokenId id, float logprob, const Tokenizer* tokenizer) {
  const TokenSpelling spelling = SpellToken(tokenizer, id);
  return {{"token", spelling.text},
          {"logprob", Finite(logprob)},
          {"bytes", BytesJson(spelling.bytes)},
          {"id", id}};
}

json ChatToken(const GeneratedToken& token, const Tokenizer* tokenizer) {
  json entry = ChatEntry(token.id, token.logprob, tokenizer);
  json& top = entry["top_logprobs"] = json::array();
  for (const TokenLogprob& other : token.top) {
    top.push_back(ChatEntry(other.id, other.logprob, tokenizer));
  }
  return entry;
}

json LlamaEntry(TokenId id, float logprob, Probs probs, const Tokenizer* tokenizer) {
  const TokenSpelling spelling = SpellToken(tokenizer, id);
  const bool is_part = tokenizer && spelling.text != spelling.bytes;
  json entry = {{"id", id},
                {"token", is_part ? std::string(kReplacementChar) : spelling.text},
                {"bytes", BytesJson(spelling.bytes)}};
  if (probs == Probs::kSampled) {
    entry["prob"] = std::exp(logprob);
  } else {
    entry["logprob"] = Finite(logprob);
  }
  return entry;
}

json LlamaToken(const GeneratedToken& token, Probs probs, const Tokenizer* tokenizer) {
  json entry = LlamaEntry(token.id, token.logprob, probs, tokenizer);
  json& top = entry[probs == Probs::kSampled ? "top_probs" : "top_logprobs"] = json::array();
  for (const TokenLogprob& other : token.top) {
    top.push_back(LlamaEntry(other.id, other.logprob, probs, tokenizer));
  }
  return entry;
}

// Counts the characters of the text that came with a token but are not its own: U+FFFD for half a
// character that it does not complete.
uint64_t CharactersBefore(const TokenSpelling& spelling, uint64_t characters) {
  const uint64_t own = CountCharacters(spelling.bytes);
  return spelling.text == spelling.bytes && characters > own ? characters - own : 0;
}

json LegacyLogprob(const GeneratedToken& token) {
  return std::isnan(token.logprob) ? json() : json(Finite(token.logprob));
}

json LegacyTop(const GeneratedToken& token, const Tokenizer* tokenizer) {
  if (std::isnan(token.logprob)) return {};
  json top = json::object();
  for (const TokenLogprob& other : token.top) {
    // When two ids have the same spelling, keeps the first, which is likelier.
    top.emplace(SpellToken(tokenizer, other.id).text, Finite(other.logprob));
  }
  top.emplace(SpellToken(tokenizer, token.id).text, Finite(token.logprob));
  return top;
}

}  // namespace

TokenSpelling SpellToken(const Tokenizer* tokenizer, TokenId id) {
  if (!tokenizer) return {fmt::format("token_id:{}", id), ""};
  // Decoded as the second of two: some decoders drop a space in front of the first.
  const TokenId twice[] = {id, id};
  const std::string once = tokenizer->Decode({twice, 1}, SpecialTokens::kShow);
  std::string text = tokenizer->Decode(twice, SpecialTokens::kShow);
  text = text.starts_with(once) ? text.substr(once.size()) : once;
  if (text.find(kReplacementChar) == std::string::npos) return {text, text};
  const std::optional<std::string> bytes = PartialBytes(tokenizer->TokenText(id));
  if (!bytes || *bytes == text) return {text, text};
  std::string spelt = "bytes:";
  for (const char c : *bytes) spelt += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return {spelt, *bytes};
}

json ChatLogprobs(const std::vector<GeneratedToken>& tokens, const Tokenizer* tokenizer) {
  json content = json::array();
  for (const GeneratedToken& token : tokens) content.push_back(ChatToken(token, tokenizer));
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

json LegacyLogprobs(const std::vector<GeneratedToken>& tokens, uint64_t text_offset,
                    const Tokenizer* tokenizer) {
  json texts = json::array(), logprobs = json::array(), tops = json::array();
  json offsets = json::array();
  for (const GeneratedToken& token : tokens) {
    const TokenSpelling spelling = SpellToken(tokenizer, token.id);
    texts.push_back(spelling.text);
    logprobs.push_back(LegacyLogprob(token));
    tops.push_back(LegacyTop(token, tokenizer));
    const uint64_t characters = CountCharacters(token.text);
    offsets.push_back(text_offset + CharactersBefore(spelling, characters));
    text_offset += characters;
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

json LlamaProbabilities(const std::vector<GeneratedToken>& tokens, Probs probs,
                        const Tokenizer* tokenizer) {
  json list = json::array();
  for (const GeneratedToken& token : tokens) list.push_back(LlamaToken(token, probs, tokenizer));
  return list;
}

void ScoredTokens::Add(const GeneratedToken& token) {
  entries_.push_back({token.id, token.logprob, static_cast<uint32_t>(CountCharacters(token.text)),
                      static_cast<uint32_t>(token.top.size())});
  top_.insert(top_.end(), token.top.begin(), token.top.end());
}

GeneratedToken ScoredTokens::Unpack(const Entry& entry,
                                    std::deque<TokenLogprob>::const_iterator* top) {
  const auto begin = *top;
  *top += entry.num_top;
  return {entry.id, "", entry.logprob, {begin, *top}};
}

Parts ScoredTokens::ChatText(const Tokenizer* tokenizer) const {
  auto top = top_.begin();
  co_yield R"({"refusal":null,"content":)";
  co_yield ListParts(entries_, [&](const Entry& entry) {
    return Dump(ChatToken(Unpack(entry, &top), tokenizer));
  });
  co_yield "}";
}

Parts ScoredTokens::LlamaText(Probs probs, const Tokenizer* tokenizer) const {
  auto top = top_.begin();
  co_yield ListParts(entries_, [&](const Entry& entry) {
    return Dump(LlamaToken(Unpack(entry, &top), probs, tokenizer));
  });
}

Parts ScoredTokens::LegacyText(uint64_t text_offset, const Tokenizer* tokenizer) const {
  // Makes a list from each entry and its token.
  const auto list = [this](auto text_of) {
    return ListParts(entries_, [text_of, top = top_.begin()](const Entry& entry) mutable {
      return text_of(entry, Unpack(entry, &top));
    });
  };
  co_yield R"({"tokens":)";
  co_yield list([=](const Entry& entry, const GeneratedToken&) {
    return Quoted(SpellToken(tokenizer, entry.id).text);
  });
  co_yield R"(,"token_logprobs":)";
  co_yield list(
      [](const Entry&, const GeneratedToken& token) { return Dump(LegacyLogprob(token)); });
  co_yield R"(,"top_logprobs":)";
  co_yield list(
      [=](const Entry&, const GeneratedToken& token) { return Dump(LegacyTop(token, tokenizer)); });
  co_yield R"(,"text_offset":)";
  co_yield list([&](const Entry& entry, const GeneratedToken&) {
    const uint64_t begin = std::exchange(text_offset, text_offset + entry.characters);
    const TokenSpelling spelling = SpellToken(tokenizer, entry.id);
    return std::to_string(begin + CharactersBefore(spelling, entry.characters));
  });
  co_yield "}";
}

uint64_t CountCharacters(std::string_view utf8) {
  return static_cast<uint64_t>(std::ranges::count(utf8, false, ContinuesChar));
}

}  // namespace kvasir
