#include "import/gguf_vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/result.h"

namespace kvasir {
namespace {

// Tokens of chat templates that llama.cpp takes for the end of an answer, without those that some
// family also writes inside an answer.
constexpr std::array<std::string_view, 12> kEnds = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "<end_of_utterance>",
    "<|return|>",
    "<|end_of_turn|>",
    "<\xEF\xBD\x9C"
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>"};
// In a vocabulary with <|return|>, <|end|> ends a message and not the answer (gpt-oss).
constexpr std::string_view kReturn = "<|return|>", kEnd = "<|end|>";

tl::unexpected<Error> Broken(const std::string& file, std::string_view what) {
  return Fail(Code::kCorruption,
              "{}: tokenizer.ggml.{}; put the model's tokenizer.json beside the file", file, what);
}

const GgufValue* FindValue(const GgufFile& gguf, std::string_view key) {
  const auto found = gguf.metadata.find("tokenizer.ggml." + std::string(key));
  return found == gguf.metadata.end() ? nullptr : &found->second;
}

template <typename T>
Result<std::optional<T>> Read(const GgufFile& gguf, std::string_view key, const char* type,
                              const std::string& file) {
  const GgufValue* value = FindValue(gguf, key);
  if (value == nullptr) return std::nullopt;
  if (const T* typed = std::get_if<T>(value)) return *typed;
  return Broken(file, fmt::format("{} is not a {}", key, type));
}

// A token id. Absent when the key is missing or the id is beyond the tokens: some files name a
// padding token that they do not have.
Result<std::optional<TokenId>> ReadId(const GgufFile& gguf, std::string_view key, size_t num_tokens,
                                      const std::string& file) {
  const GgufValue* value = FindValue(gguf, key);
  if (value == nullptr) return std::nullopt;
  uint64_t id = 0;
  if (const auto* u = std::get_if<uint64_t>(value)) {
    id = *u;
  } else if (const auto* i = std::get_if<int64_t>(value); i != nullptr) {
    if (*i < 0) return std::nullopt;  // some converters write -1 for "no token"
    id = static_cast<uint64_t>(*i);
  } else {
    return Broken(file, fmt::format("{} is not a whole number", key));
  }
  if (id >= num_tokens) return std::nullopt;
  return static_cast<TokenId>(id);
}

// The numbers of a list; absent when the key is missing.
Result<std::optional<std::vector<double>>> ReadNumbers(const GgufFile& gguf, std::string_view key,
                                                       size_t count, const std::string& file) {
  KV_ASSIGN(const auto array, Read<GgufArray>(gguf, key, "list", file));
  if (!array) return std::nullopt;
  if (array->count != count) {
    return Broken(file, fmt::format("{} has {} entries for {} tokens", key, array->count, count));
  }
  auto numbers = NumbersOf(*array);
  if (!numbers) return Broken(file, fmt::format("{} is not a list of numbers", key));
  return std::move(*numbers);
}

bool IsByteText(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return false;
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'); };
  return is_digit(text[3]) && is_digit(text[4]);
}

Status ReadKinds(const GgufFile& gguf, const std::string& file, Vocabulary& vocabulary) {
  auto& tokens = vocabulary.tokens;
  KV_ASSIGN(const auto kinds, ReadNumbers(gguf, "token_type", tokens.size(), file));
  for (size_t id = 0; id < tokens.size(); ++id) {
    VocabularyToken& token = tokens[id];
    if (kinds) {
      const double kind = (*kinds)[id];
      // 0 means "undefined": llama.cpp writes it for a token of unknown type.
      if (!(kind >= 0 && kind <= 6) || kind != std::floor(kind)) {
        return Broken(file, fmt::format("token_type[{}] is {}, not in 0..6", id, kind));
      }
      if (kind > 0) token.kind = static_cast<TokenKind>(static_cast<int>(kind));
    } else if (vocabulary.kind == VocabularyKind::kSentencePiece && IsByteText(token.text)) {
      token.kind = TokenKind::kByte;  // old files have no token_type
    }
    // Converters give this name to rows without a token.
    if (token.text == fmt::format("[PAD{}]", id)) token.kind = TokenKind::kUnused;
  }
  TakeUserTextsAsWritten(&vocabulary);
  return {};
}

// BOS and EOS of SentencePiece files that name neither: tokens 1 and 2, if they have these texts.
void NameDefaults(Vocabulary& vocabulary) {
  const auto is = [&](size_t id, std::string_view text) {
    return id < vocabulary.tokens.size() && vocabulary.tokens[id].text == text;
  };
  if (!vocabulary.bos && is(1, "<s>")) vocabulary.bos = 1;
  if (!vocabulary.eos && is(2, "</s>")) vocabulary.eos = 2;
}

Status ReadSpecials(const GgufFile& gguf, const std::string& file, Vocabulary& vocabulary) {
  auto& tokens = vocabulary.tokens;
  KV_ASSIGN(vocabulary.bos, ReadId(gguf, "bos_token_id", tokens.size(), file));
  KV_ASSIGN(vocabulary.eos, ReadId(gguf, "eos_token_id", tokens.size(), file));
  KV_ASSIGN(vocabulary.add_bos, Read<bool>(gguf, "add_bos_token", "boolean", file));
  KV_ASSIGN(vocabulary.add_eos, Read<bool>(gguf, "add_eos_token", "boolean", file));
  KV_ASSIGN(const auto unk, ReadId(gguf, "unknown_token_id", tokens.size(), file));
  const bool pieces = vocabulary.kind == VocabularyKind::kSentencePiece;
  if (pieces) NameDefaults(vocabulary);
  for (const char* key : {"eot_token_id", "eom_token_id"}) {
    KV_ASSIGN(const auto id, ReadId(gguf, key, tokens.size(), file));
    if (id) tokens[static_cast<size_t>(*id)].kind = TokenKind::kControl;
  }
  for (const auto& id : {vocabulary.bos, vocabulary.eos}) {
    if (id) tokens[static_cast<size_t>(*id)].kind = TokenKind::kControl;
  }
  for (VocabularyToken& token : tokens) {
    if (token.kind == TokenKind::kUserDefined &&
        std::ranges::find(kEnds, token.text) != kEnds.end())
      token.kind = TokenKind::kControl;
  }
  if (!pieces) return {};
  // Converters mark <unk> as a control token. It is also the token of unknown characters, so
  // exactly this one gets kUnknown.
  const size_t id = unk ? static_cast<size_t>(*unk) : 0;
  if (id < tokens.size() && (unk || tokens[0].text == "<unk>")) {
    for (VocabularyToken& token : tokens) {
      if (token.kind == TokenKind::kUnknown) token.kind = TokenKind::kControl;
    }
    tokens[id].kind = TokenKind::kUnknown;
  }
  return {};
}

// Phi-3's special tokens swallow the white space after them, which GGUF files leave out.
void AddPhi3Traits(const GgufFile& gguf, Vocabulary& vocabulary) {
  const auto found = gguf.metadata.find("general.architecture");
  const auto* name =
      found == gguf.metadata.end() ? nullptr : std::get_if<std::string>(&found->second);
  if (name == nullptr || *name != "phi3") return;
  for (VocabularyToken& token : vocabulary.tokens) {
    const bool special = token.kind == TokenKind::kControl || token.kind == TokenKind::kUserDefined;
    token.rstrip = special && token.text != "<s>" && token.text != "<|endoftext|>";
  }
}

Status ReadTokens(const GgufFile& gguf, const std::string& file, Vocabulary& vocabulary) {
  KV_ASSIGN(const auto list, Read<GgufArray>(gguf, "tokens", "list", file));
  if (!list) return Broken(file, "tokens is missing");
  auto texts = StringsOf(*list);
  if (!texts) return Broken(file, "tokens is not a list of strings");
  vocabulary.tokens.resize(texts->size());
  for (size_t id = 0; id < texts->size(); ++id) {
    vocabulary.tokens[id].text = std::move((*texts)[id]);
  }
  return {};
}

Status ReadByteLevel(const GgufFile& gguf, const std::string& file, Vocabulary& vocabulary) {
  KV_ASSIGN(const auto pre, Read<std::string>(gguf, "pre", "string", file));
  vocabulary.pre = pre.value_or("default");
  KV_ASSIGN(const auto list, Read<GgufArray>(gguf, "merges", "list", file));
  if (!list) return Broken(file, "merges is missing");
  vocabulary.merges = StringsOf(*list);
  if (!vocabulary.merges) return Broken(file, "merges is not a list of strings");
  return {};
}

Status ReadSentencePiece(const GgufFile& gguf, const std::string& file, Vocabulary& vocabulary) {
  KV_ASSIGN(const auto scores, ReadNumbers(gguf, "scores", vocabulary.tokens.size(), file));
  if (!scores) return Broken(file, "scores is missing");
  for (size_t id = 0; id < scores->size(); ++id) {
    vocabulary.tokens[id].score = static_cast<float>((*scores)[id]);
  }
  KV_ASSIGN(const auto prefix, Read<bool>(gguf, "add_space_prefix", "boolean", file));
  vocabulary.space_prefix = prefix.value_or(true) ? SpacePrefix::kEveryText : SpacePrefix::kNever;
  KV_ASSIGN(const auto collapse, Read<bool>(gguf, "remove_extra_whitespaces", "boolean", file));
  vocabulary.collapse_spaces = collapse.value_or(false);
  AddPhi3Traits(gguf, vocabulary);
  return {};
}

}  // namespace

Result<std::optional<Vocabulary>> ReadGgufVocabulary(const GgufFile& gguf,
                                                     const std::string& file) {
  KV_ASSIGN(const auto model, Read<std::string>(gguf, "model", "string", file));
  if (!model || *model == "none" || *model == "no_vocab") return std::nullopt;
  Vocabulary vocabulary;
  vocabulary.file = file;
  if (*model == "llama") {
    vocabulary.kind = VocabularyKind::kSentencePiece;
  } else if (*model != "gpt2") {
    return Fail(Code::kUnsupported,
                "{}: its vocabulary is of the kind '{}' (tokenizer.ggml.model), which is not read "
                "(known: gpt2, llama); put a tokenizer.json beside the file",
                file, model->substr(0, 80));
  }
  KV_TRY(ReadTokens(gguf, file, vocabulary));
  KV_TRY(ReadKinds(gguf, file, vocabulary));
  KV_TRY(ReadSpecials(gguf, file, vocabulary));
  if (vocabulary.kind == VocabularyKind::kSentencePiece) {
    KV_TRY(ReadSentencePiece(gguf, file, vocabulary));
  } else {
    KV_TRY(ReadByteLevel(gguf, file, vocabulary));
  }
  return vocabulary;
}

std::vector<TokenId> EndsByName(const GgufFile& gguf) {
  const GgufValue* value = FindValue(gguf, "tokens");
  const auto* list = value == nullptr ? nullptr : std::get_if<GgufArray>(value);
  const auto texts = list == nullptr ? std::nullopt : StringsOf(*list);
  if (!texts) return {};
  const GgufValue* types = FindValue(gguf, "token_type");
  const auto* type_list = types == nullptr ? nullptr : std::get_if<GgufArray>(types);
  const auto kinds = type_list == nullptr ? std::nullopt : NumbersOf(*type_list);
  const bool returns = std::ranges::find(*texts, kReturn) != texts->end();
  std::vector<TokenId> ends;
  for (size_t id = 0; id < texts->size(); ++id) {
    const std::string& text = (*texts)[id];
    if (std::ranges::find(kEnds, text) == kEnds.end() || (returns && text == kEnd)) continue;
    // A token whose type is text does not end an answer, whatever its name.
    const double kind = kinds && id < kinds->size() ? (*kinds)[id] : 0;
    if (kind != static_cast<double>(TokenKind::kControl) &&
        kind != static_cast<double>(TokenKind::kUserDefined)) {
      continue;
    }
    ends.push_back(static_cast<TokenId>(id));
  }
  return ends;
}

}  // namespace kvasir
