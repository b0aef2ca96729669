#include "import/gguf_vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/ascii.h"
#include "base/result.h"
#include "import/gguf_metadata.h"

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

constexpr const char* kPrefix = "tokenizer.ggml.";

bool IsByteText(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return false;
  const auto is_digit = [](char c) { return IsAsciiDigit(c) || (c >= 'A' && c <= 'F'); };
  return is_digit(text[3]) && is_digit(text[4]);
}

void ReadKinds(Metadata& keys, Vocabulary& vocabulary) {
  auto& tokens = vocabulary.tokens;
  const auto kinds = keys.Numbers("token_type", tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    VocabularyToken& token = tokens[id];
    if (kinds) {
      const double kind = (*kinds)[id];
      // 0 means "undefined": llama.cpp writes it for a token of unknown type.
      if (!(kind >= 0 && kind <= 6) || kind != std::floor(kind)) {
        return keys.Wrong("token_type", fmt::format("has {} for token {}, not 0 to 6", kind, id));
      }
      if (kind > 0) token.kind = static_cast<TokenKind>(static_cast<int>(kind));
    } else if (vocabulary.kind == VocabularyKind::kSentencePiece && IsByteText(token.text)) {
      token.kind = TokenKind::kByte;  // old files have no token_type
    }
    // Converters give this name to rows without a token.
    if (token.text == fmt::format("[PAD{}]", id)) token.kind = TokenKind::kUnused;
  }
  TakeUserTextsAsWritten(&vocabulary);
}

// Names BOS and EOS of SentencePiece files that name neither: tokens 1 and 2, if they have these
// texts.
void NameDefaults(Vocabulary& vocabulary) {
  const auto is = [&](size_t id, std::string_view text) {
    return id < vocabulary.tokens.size() && vocabulary.tokens[id].text == text;
  };
  if (!vocabulary.bos && is(1, "<s>")) vocabulary.bos = 1;
  if (!vocabulary.eos && is(2, "</s>")) vocabulary.eos = 2;
}

void ReadSpecials(Metadata& keys, Vocabulary& vocabulary) {
  auto& tokens = vocabulary.tokens;
  vocabulary.bos = keys.Id("bos_token_id", tokens.size());
  vocabulary.eos = keys.Id("eos_token_id", tokens.size());
  vocabulary.add_bos = keys.Flag("add_bos_token");
  vocabulary.add_eos = keys.Flag("add_eos_token");
  const auto unk = keys.Id("unknown_token_id", tokens.size());
  const bool pieces = vocabulary.kind == VocabularyKind::kSentencePiece;
  if (pieces) NameDefaults(vocabulary);
  for (const char* key : {"eot_token_id", "eom_token_id"}) {
    if (const auto id = keys.Id(key, tokens.size()))
      tokens[static_cast<size_t>(*id)].kind = TokenKind::kControl;
  }
  for (const auto& id : {vocabulary.bos, vocabulary.eos}) {
    if (id) tokens[static_cast<size_t>(*id)].kind = TokenKind::kControl;
  }
  for (VocabularyToken& token : tokens) {
    if (token.kind == TokenKind::kUserDefined &&
        std::ranges::find(kEnds, token.text) != kEnds.end())
      token.kind = TokenKind::kControl;
  }
  if (!pieces) return;
  // Converters mark <unk> as a control token. It is also the token of unknown characters, so
  // exactly this one gets kUnknown.
  const size_t id = unk ? static_cast<size_t>(*unk) : 0;
  if (id < tokens.size() && (unk || tokens[0].text == "<unk>")) {
    for (VocabularyToken& token : tokens) {
      if (token.kind == TokenKind::kUnknown) token.kind = TokenKind::kControl;
    }
    tokens[id].kind = TokenKind::kUnknown;
  }
}

// Makes Phi-3's special tokens swallow the white space after them, which GGUF files leave out.
void AddPhi3Traits(const GgufFile& gguf, Vocabulary& vocabulary) {
  if (Metadata(gguf, "general.", vocabulary.file).Text("architecture") != "phi3") return;
  for (VocabularyToken& token : vocabulary.tokens) {
    const bool special = token.kind == TokenKind::kControl || token.kind == TokenKind::kUserDefined;
    token.rstrip = special && token.text != "<s>" && token.text != "<|endoftext|>";
  }
}

void ReadTokens(Metadata& keys, Vocabulary& vocabulary) {
  if (!keys.Has("tokens")) keys.Wrong("tokens", "is missing");
  auto texts = keys.Texts("tokens", kMaxVocabulary).value_or(std::vector<std::string>());
  vocabulary.tokens.resize(texts.size());
  for (size_t id = 0; id < texts.size(); ++id) vocabulary.tokens[id].text = std::move(texts[id]);
}

void ReadByteLevel(Metadata& keys, Vocabulary& vocabulary) {
  vocabulary.pre = keys.Text("pre").value_or("default");
  if (!keys.Has("merges")) keys.Wrong("merges", "is missing");
  vocabulary.merges = keys.Texts("merges", kMaxVocabulary);
}

void ReadSentencePiece(const GgufFile& gguf, Metadata& keys, Vocabulary& vocabulary) {
  if (!keys.Has("scores")) keys.Wrong("scores", "is missing");
  if (const auto scores = keys.Numbers("scores", vocabulary.tokens.size())) {
    for (size_t id = 0; id < scores->size(); ++id) {
      vocabulary.tokens[id].score = static_cast<float>((*scores)[id]);
    }
  }
  const bool prefix = keys.Flag("add_space_prefix").value_or(true);
  vocabulary.space_prefix = prefix ? SpacePrefix::kEveryText : SpacePrefix::kNever;
  vocabulary.collapse_spaces = keys.Flag("remove_extra_whitespaces").value_or(false);
  AddPhi3Traits(gguf, vocabulary);
}

}  // namespace

Result<std::optional<Vocabulary>> ReadGgufVocabulary(const GgufFile& gguf,
                                                     const std::string& file) {
  Metadata keys(gguf, kPrefix, file, Code::kCorruption,
                "; put the model's tokenizer.json beside the file");
  const auto model = keys.Text("model");
  KV_TRY(keys.status());
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
  ReadTokens(keys, vocabulary);
  KV_TRY(keys.status());
  ReadKinds(keys, vocabulary);
  ReadSpecials(keys, vocabulary);
  if (vocabulary.kind == VocabularyKind::kSentencePiece) {
    ReadSentencePiece(gguf, keys, vocabulary);
  } else {
    ReadByteLevel(keys, vocabulary);
  }
  KV_TRY(keys.status());
  return vocabulary;
}

std::vector<TokenId> EndsByName(const GgufFile& gguf) {
  const std::string file;
  Metadata keys(gguf, kPrefix, file);  // its errors are those of the vocabulary
  const auto texts = keys.Texts("tokens", kMaxVocabulary);
  if (!texts) return {};
  const GgufArray* types = keys.List("token_type");
  const bool has_kinds = types != nullptr && types->count <= kMaxVocabulary;
  const auto kinds = has_kinds ? NumbersOf(*types) : std::nullopt;
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
