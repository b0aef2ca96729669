#include "text/tiktoken_ranks.h"

#include <array>
#include <charconv>
#include <filesystem>
#include <optional>

#include "base/base64.h"
#include "base/result.h"
#include "text/byte_level.h"

namespace kvasir {
namespace {

constexpr uint32_t kMaxRank = (1u << 22) - 1;
constexpr size_t kMaxRankGap = size_t{1} << 16;  // of ids without a token

struct Line {
  std::string token;  // bytes
  uint32_t rank;
};

std::optional<Line> ParseLine(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == line.npos) return std::nullopt;
  auto token = DecodeBase64(line.substr(0, space));
  const std::string_view number = line.substr(space + 1);
  uint32_t rank = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
  if (!token || token->empty() || error != std::errc() || end != number.data() + number.size() ||
      rank > kMaxRank) {
    return std::nullopt;
  }
  return Line{std::move(*token), rank};
}

std::string_view TakeLine(std::string_view* bytes) {
  const size_t end = bytes->find('\n');
  std::string_view line = bytes->substr(0, end);
  bytes->remove_prefix(end == bytes->npos ? bytes->size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

// A family's pattern, by the model's architecture or the file's name.
struct Family {
  std::string_view architecture, stem, pre;
};
constexpr std::array<Family, 8> kFamilies = {{
    {"qwen2", "qwen", "qwen2"},
    {"qwen3", "", "qwen2"},
    {"qwen3moe", "", "qwen2"},
    {"llama", "", "llama-bpe"},
    {"phi3", "cl100k_base", "dbrx"},
    {"gpt2", "r50k_base", "gpt-2"},
    {"", "p50k_base", "gpt-2"},
    {"", "o200k_base", "gpt-4o"},
}};

std::string_view PatternOf(std::string_view architecture, std::string_view stem) {
  for (const Family& family : kFamilies) {
    if (!family.stem.empty() && family.stem == stem) return family.pre;
  }
  for (const Family& family : kFamilies) {
    if (!family.architecture.empty() && family.architecture == architecture) return family.pre;
  }
  return "";
}

// Adds the special tokens, whose ids follow the ranks, as tiktoken and the families have them. They
// are in the code of a family, not in the file.
void AddSpecials(Vocabulary& vocabulary) {
  const auto add = [&](std::string text) {
    vocabulary.tokens.push_back({std::move(text), TokenKind::kControl});
    return static_cast<TokenId>(vocabulary.tokens.size() - 1);
  };
  if (vocabulary.pre == "qwen2") {
    vocabulary.eos = add("<|endoftext|>");
    add("<|im_start|>");
    add("<|im_end|>");
  } else if (vocabulary.pre == "llama-bpe") {
    vocabulary.bos = add("<|begin_of_text|>");
    vocabulary.eos = add("<|end_of_text|>");
    for (const char* text :
         {"<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
          "<|reserved_special_token_2|>", "<|reserved_special_token_3|>", "<|start_header_id|>",
          "<|end_header_id|>", "<|reserved_special_token_4|>", "<|eot_id|>"}) {
      add(text);
    }
  } else if (vocabulary.pre == "gpt-2") {
    // r50k_base ends before this id; p50k_base has more ranks after it, and left the id free.
    constexpr size_t kEnd = 50256;
    if (vocabulary.tokens.size() > kEnd && vocabulary.tokens[kEnd].text.empty()) {
      vocabulary.tokens[kEnd] = {"<|endoftext|>", TokenKind::kControl};
      vocabulary.bos = vocabulary.eos = static_cast<TokenId>(kEnd);
    } else {
      vocabulary.bos = vocabulary.eos = add("<|endoftext|>");
    }
  } else if (vocabulary.pre == "dbrx" || vocabulary.pre == "gpt-4o") {
    // cl100k_base: 100257 to 100260 and 100276. o200k_base: 199999 and 200018.
    const bool is_cl100k = vocabulary.pre == "dbrx";
    const auto skip = [&](size_t ids) { vocabulary.tokens.resize(vocabulary.tokens.size() + ids); };
    skip(1);
    vocabulary.eos = add("<|endoftext|>");
    if (is_cl100k) {
      for (const char* text : {"<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"}) add(text);
    }
    skip(is_cl100k ? 15 : 18);
    add("<|endofprompt|>");
  }
}

}  // namespace

bool LooksLikeTiktoken(std::string_view bytes) { return ParseLine(TakeLine(&bytes)).has_value(); }

Result<Vocabulary> ParseTiktoken(std::string_view bytes, const std::string& file,
                                 std::string_view architecture) {
  Vocabulary vocabulary;
  vocabulary.file = file;
  vocabulary.pre = PatternOf(architecture, std::filesystem::path(file).stem().string());
  if (vocabulary.pre.empty()) {
    return Fail(Code::kUnsupported,
                "{}: how '{}' cuts text into words is not known, and tiktoken's ranks do not say "
                "it; put the model's tokenizer.json beside the file",
                file, architecture);
  }
  for (size_t number = 1; !bytes.empty(); ++number) {
    const std::string_view text = TakeLine(&bytes);
    if (text.empty()) continue;
    const std::optional<Line> line = ParseLine(text);
    if (!line) {
      return Fail(Code::kCorruption, "{}: line {} is not a token in base64 and its id up to {}",
                  file, number, kMaxRank);
    }
    if (line->rank > vocabulary.tokens.size() + kMaxRankGap) {
      return Fail(Code::kCorruption, "{}: line {}: the id {} is far beyond those before it", file,
                  number, line->rank);
    }
    if (line->rank >= vocabulary.tokens.size()) vocabulary.tokens.resize(line->rank + 1);
    VocabularyToken& token = vocabulary.tokens[line->rank];
    if (!token.text.empty()) {
      return Fail(Code::kCorruption, "{}: line {}: the id {} stands twice", file, number,
                  line->rank);
    }
    for (char c : line->token) token.text += ByteLevelChar(static_cast<uint8_t>(c));
    token.score = -static_cast<float>(line->rank);
  }
  AddSpecials(vocabulary);
  return vocabulary;
}

}  // namespace kvasir
