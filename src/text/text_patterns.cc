#include "text/text_patterns.h"

#include <nlohmann/json.hpp>

namespace kvasir {
namespace {

constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

#define CONTRACTIONS R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
#define SPACES R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"
#define WORDS_WITH_NUMBERS(numbers) \
  CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|)" numbers R"(| ?[^\s\p{L}\p{N}]+[\r\n]*)" SPACES
constexpr const char* kLlama3 = WORDS_WITH_NUMBERS(R"(\p{N}{1,3})");
constexpr const char* kQwen2 = WORDS_WITH_NUMBERS(R"(\p{N})");

// Words also end where a small letter is followed by a capital one.
#define CAPITALS R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define SMALL R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define CASED_WORDS(ending, numbers)                                                      \
  R"([^\r\n\p{L}\p{N}]?)" CAPITALS "*" SMALL "+" ending R"(|[^\r\n\p{L}\p{N}]?)" CAPITALS \
  "+" SMALL "*" ending "|" numbers R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*)" SPACES
constexpr const char* kTekken = CASED_WORDS("", R"(\p{N})");
constexpr const char* kGpt4o = CASED_WORDS(CONTRACTIONS "?", R"(\p{N}{1,3})");

constexpr const char* kDeepseekV3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*)" SPACES;
// Letters that have a case, as of the Unicode version that DeepSeek used.
constexpr const char* kDeepseekLetters =
    R"(\s?[A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293})"
    R"(\x{295}-\x{2af}\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a})"
    R"(\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556})"
    R"(\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf})"
    R"(\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d})"
    R"(\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d})"
    R"(\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4})"
    R"(\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4})"
    R"(\x{1ff6}-\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126})"
    R"(\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}\x{2145}-\x{2149})"
    R"(\x{214e}\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3})"
    R"(\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787}\x{a78b}-\x{a78e})"
    R"(\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a})"
    R"(\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2})"
    R"(\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943}]+)";
constexpr const char* kDeepseekPunctuation =
    R"(\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+)";
constexpr const char* kDeepseekAsian = R"([\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+)";
constexpr const char* kDeepseekV3Asian =
    R"([\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)";

#undef CONTRACTIONS
#undef SPACES
#undef WORDS_WITH_NUMBERS
#undef CAPITALS
#undef SMALL
#undef CASED_WORDS

// Steps that are not regular expressions.
constexpr const char* kEachDigit = "digit";
constexpr const char* kDigitRuns = "digits";
constexpr const char* kPunctuationRuns = "punctuation";
constexpr const char* kBytes =
    "bytes";  // the steps after it see bytes; without it, bytes come last

// Each as in the tokenizer.json of the models that use it. GGUF files have only the name.
constexpr TextPattern kPatterns[] = {
    // llama.cpp's, for files without tokenizer.ggml.pre.
    {"default", {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
    {"gpt-2 phi-2 jina-es jina-de gigachat exaone4 granite-docling modern-bert mellum", {kGpt2}},
    {"mpt olmo", {kGpt2}, {.nfc = true}},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 lfm2 pixtral",
     {kLlama3},
     {.whole_words = true, .add_bos = true}},
    {"dbrx smaug-bpe", {kLlama3}},
    {"qwen2 deepseek-r1-qwen megrez", {kQwen2}, {.nfc = true}},
    {"stablelm2", {kQwen2}},
    {"starcoder refact smollm codeshell exaone minerva-7b", {kEachDigit, kGpt2}},
    {"command-r", {kEachDigit, kGpt2}, {.nfc = true}},
    {"falcon", {kPunctuationRuns, kGpt2, kBytes, kDigitRuns, "[0-9][0-9][0-9]"}},
    {"deepseek-llm",
     {R"([\r\n])", kDeepseekLetters, kDeepseekPunctuation, R"(\s+$)", kDeepseekAsian, kEachDigit}},
    {"deepseek-coder", {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepseekAsian, kEachDigit}},
    {"deepseek-v3 hunyuan-dense", {R"(\p{N}{1,3})", kDeepseekV3Asian, kDeepseekV3}},
    {"tekken", {kTekken}, {.whole_words = true, .add_bos = true}},
    {"gpt-4o llama4 kanana2", {kGpt4o}},
};

// Calls visit(name) for each name of a row until one call returns true.
template <typename Visit>
bool VisitNames(const TextPattern& pattern, const Visit& visit) {
  std::string_view names = pattern.names;
  while (!names.empty()) {
    const size_t end = names.find(' ');
    if (visit(names.substr(0, end))) return true;
    names = end == names.npos ? "" : names.substr(end + 1);
  }
  return false;
}

nlohmann::json StepJson(std::string_view step) {
  if (step == kEachDigit) return {{"type", "Digits"}, {"individual_digits", true}};
  if (step == kDigitRuns) return {{"type", "Digits"}, {"individual_digits", false}};
  if (step == kPunctuationRuns) return {{"type", "Punctuation"}, {"behavior", "Contiguous"}};
  if (step == kBytes) {
    return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  }
  return {{"type", "Split"}, {"pattern", {{"Regex", step}}}, {"behavior", "Isolated"}};
}

}  // namespace

const TextPattern* FindTextPattern(std::string_view name) {
  for (const TextPattern& pattern : kPatterns) {
    if (VisitNames(pattern, [&](std::string_view known) { return known == name; })) return &pattern;
  }
  return nullptr;
}

std::string TextPatternNames() {
  std::string all;
  for (const TextPattern& pattern : kPatterns) {
    VisitNames(pattern, [&](std::string_view name) {
      all += (all.empty() ? "" : ", ") + std::string(name);
      return false;
    });
  }
  return all;
}

nlohmann::json PreTokenizerJson(const TextPattern& pattern) {
  nlohmann::json steps = nlohmann::json::array();
  bool bytes = false;
  for (const char* step : pattern.steps) {
    if (step == nullptr) break;
    steps.push_back(StepJson(step));
    bytes |= std::string_view(step) == kBytes;
  }
  if (!bytes) steps.push_back(StepJson(kBytes));
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

}  // namespace kvasir
