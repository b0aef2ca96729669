#include "text/translation_vocabulary.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/json_object.h"
#include "base/result.h"
#include "text/language_codes.h"
#include "text/tokenizer_json.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr size_t kMaxMissing = 16;   // one in so many pieces may be missing in vocab.json
constexpr size_t kMaxPadding = 128;  // of a matrix of embeddings: ids that no token has
constexpr uint64_t kMaxMadeUp = 65536;
constexpr const char* kFetch = "fetch both files again, from one model";

// Returns the tokens by id, each of [0, size) once.
Result<std::vector<VocabularyToken>> TokensOf(const json& vocab, const std::string& path) {
  std::vector<VocabularyToken> tokens(vocab.size());
  for (const auto& entry : vocab.items()) {
    const json& value = entry.value();
    const std::string shown = entry.key().substr(0, 40);
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= tokens.size()) {
      return Fail(
          Code::kCorruption,
          "{}: the id of '{}' is not in 0..{}: a piece stands twice, or the file is cut; {}", path,
          shown, tokens.size() - 1, kFetch);
    }
    VocabularyToken& token = tokens[value.get<size_t>()];
    if (entry.key().empty() || !token.text.empty()) {
      return Fail(Code::kCorruption, "{}: id {} has the pieces '{}' and '{}'; {}", path,
                  value.get<uint64_t>(), token.text.substr(0, 40), shown, kFetch);
    }
    token = {.text = entry.key(), .kind = TokenKind::kUnused};
  }
  return tokens;
}

std::optional<TokenId> Find(const Vocabulary& vocabulary, std::string_view text) {
  const auto found = std::ranges::find(vocabulary.tokens, text, &VocabularyToken::text);
  if (found == vocabulary.tokens.end()) return std::nullopt;
  return static_cast<TokenId>(found - vocabulary.tokens.begin());
}

// Marks the special tokens that both kinds have. kCorruption: one is missing.
Status MarkSpecials(Vocabulary* vocabulary, const std::string& path) {
  for (const char* text : {"<s>", "<pad>", "</s>", "<unk>"}) {
    const auto id = Find(*vocabulary, text);
    if (!id) return Fail(Code::kCorruption, "{}: has no token {}; {}", path, text, kFetch);
    const bool unknown = text == std::string_view("<unk>");
    vocabulary->tokens[static_cast<size_t>(*id)].kind =
        unknown ? TokenKind::kUnknown : TokenKind::kControl;
  }
  vocabulary->bos = Find(*vocabulary, "<s>");
  vocabulary->eos = Find(*vocabulary, "</s>");
  vocabulary->add_bos = vocabulary->add_eos = false;
  return {};
}

bool IsPiece(const VocabularyToken& token) {
  return token.kind != TokenKind::kControl && token.kind != TokenKind::kUnknown;
}

// Gives the tokens the kinds and scores of their pieces. Returns the pieces that are not among
// them. kCorruption: too many are not.
Result<std::vector<VocabularyToken>> TakePieces(const Vocabulary& pieces, Vocabulary* vocabulary) {
  std::unordered_map<std::string_view, VocabularyToken*> by_text;
  for (VocabularyToken& token : vocabulary->tokens) by_text.emplace(token.text, &token);
  std::vector<VocabularyToken> missing;
  for (const VocabularyToken& piece : pieces.tokens) {
    if (!IsPiece(piece)) continue;
    const auto found = by_text.find(piece.text);
    if (found == by_text.end()) {
      missing.push_back(piece);
    } else {
      found->second->kind = piece.kind;
      found->second->score = piece.score;
    }
  }
  if (missing.size() <= pieces.tokens.size() / kMaxMissing) return missing;
  return Fail(Code::kCorruption, "{}: {} of the {} pieces of {} are missing, such as '{}'; {}",
              vocabulary->file, missing.size(), pieces.tokens.size(), pieces.file,
              missing.front().text.substr(0, 40), kFetch);
}

// Appends after the model's `num_ids` tokens, so that they only help merging.
void AppendMissing(const std::vector<VocabularyToken>& missing, size_t num_ids,
                   Vocabulary* vocabulary) {
  if (missing.empty()) return;
  vocabulary->num_ids = num_ids;
  vocabulary->tokens.resize(num_ids);
  vocabulary->tokens.insert(vocabulary->tokens.end(), missing.begin(), missing.end());
}

void AppendLanguages(std::span<const std::string_view> codes, std::string_view around,
                     Vocabulary* vocabulary) {
  for (const std::string_view code : codes) {
    std::string text(around);
    text.append(code).append(around);
    vocabulary->tokens.push_back({.text = std::move(text), .kind = TokenKind::kControl});
  }
}

struct M2mConfig {
  std::span<const std::string_view> languages;
  uint64_t num_made_up = 8;
};

Result<M2mConfig> ReadConfig(std::string_view text) {
  constexpr const char* kFile = "tokenizer_config.json";
  M2mConfig config{.languages = M2mLanguages()};
  if (text.empty()) return config;
  KV_ASSIGN(const json object, ParseJsonObject(text, kFile));
  KV_ASSIGN(const std::string codes, StringField(object, "language_codes", "m2m100", kFile));
  if (codes == "wmt21") {
    config.languages = Wmt21Languages();
  } else if (codes != "m2m100") {
    return Fail(Code::kUnsupported, "{}: unknown language_codes '{}' (known: m2m100, wmt21)", kFile,
                codes.substr(0, 40));
  }
  const auto made_up = object.find("num_madeup_words");
  if (made_up == object.end() || made_up->is_null()) return config;
  if (!made_up->is_number_unsigned() || made_up->get<uint64_t>() > kMaxMadeUp) {
    return Fail(Code::kCorruption, "{}: num_madeup_words is not in 0..{}", kFile, kMaxMadeUp);
  }
  config.num_made_up = made_up->get<uint64_t>();
  return config;
}

}  // namespace

Result<Vocabulary> M2mVocabulary(Vocabulary pieces, const M2mFiles& files, size_t vocab_size) {
  const std::string& path = files.vocab_path;
  KV_TRY(CheckVocabulary(pieces));
  KV_ASSIGN(const M2mConfig config, ReadConfig(files.tokenizer_config_json));
  KV_ASSIGN(const json vocab, ParseJsonObject(files.vocab_json, path));
  if (vocab.size() > kMaxVocabulary) {
    return Fail(Code::kCorruption, "{}: {} pieces, at most {} are allowed", path, vocab.size(),
                kMaxVocabulary);
  }
  Vocabulary vocabulary;
  vocabulary.kind = pieces.kind;
  vocabulary.merging = pieces.merging;
  vocabulary.file = path;
  vocabulary.space_prefix = pieces.space_prefix;
  vocabulary.collapse_spaces = pieces.collapse_spaces;
  KV_ASSIGN(vocabulary.tokens, TokensOf(vocab, path));
  const size_t all = vocab.size() + config.languages.size() + config.num_made_up;
  if (all != vocab_size) {
    return Fail(Code::kCorruption,
                "{}: {} pieces, {} languages and {} made-up words are {} ids, but the model has "
                "{}; {}, or correct num_madeup_words in tokenizer_config.json",
                path, vocab.size(), config.languages.size(), config.num_made_up, all, vocab_size,
                kFetch);
  }
  KV_ASSIGN(const std::vector<VocabularyToken> missing, TakePieces(pieces, &vocabulary));
  KV_TRY(MarkSpecials(&vocabulary, path));
  AppendLanguages(config.languages, "__", &vocabulary);
  AppendMissing(missing, all, &vocabulary);
  vocabulary.charsmap = std::move(pieces.charsmap);
  return vocabulary;
}

Result<Vocabulary> Ct2Vocabulary(Vocabulary pieces, const Ct2Tokens& files) {
  KV_TRY(CheckVocabulary(pieces));
  Vocabulary vocabulary;
  vocabulary.kind = pieces.kind;
  vocabulary.merging = pieces.merging;
  vocabulary.file = files.path;
  vocabulary.space_prefix = pieces.space_prefix;
  vocabulary.collapse_spaces = pieces.collapse_spaces;
  for (const std::string& text : files.tokens) {
    vocabulary.tokens.push_back({.text = text, .kind = TokenKind::kUnused});
  }
  KV_ASSIGN(const std::vector<VocabularyToken> missing, TakePieces(pieces, &vocabulary));
  const auto mark = [&](const std::string& text, TokenKind kind) -> std::optional<TokenId> {
    const auto id = Find(vocabulary, text);
    if (!id) return std::nullopt;
    VocabularyToken& token = vocabulary.tokens[static_cast<size_t>(*id)];
    if (token.kind == TokenKind::kUnused || kind == TokenKind::kUnknown) token.kind = kind;
    return id;
  };
  for (const std::string_view name : M2mLanguages()) {
    mark("__" + std::string(name) + "__", TokenKind::kControl);
  }
  for (const std::string_view name : NllbLanguages()) mark(std::string(name), TokenKind::kControl);
  for (const char* name : {"<pad>", "<blank>", "<mask>"}) mark(name, TokenKind::kControl);
  vocabulary.bos = mark(files.bos, TokenKind::kControl);
  vocabulary.eos = mark(files.eos, TokenKind::kControl);
  if (!vocabulary.eos || !mark(files.unk, TokenKind::kUnknown)) {
    return Fail(Code::kCorruption, "{}: has no token {}; {}", files.path,
                vocabulary.eos ? files.unk : files.eos, kFetch);
  }
  vocabulary.add_bos = vocabulary.add_eos = false;
  AppendMissing(missing, files.tokens.size(), &vocabulary);
  vocabulary.charsmap = std::move(pieces.charsmap);
  return vocabulary;
}

Result<Vocabulary> NllbVocabulary(Vocabulary vocabulary, size_t vocab_size) {
  auto& tokens = vocabulary.tokens;
  for (size_t i = 0; i < 3; ++i) {
    const char* const texts[] = {"<unk>", "<s>", "</s>"};
    if (i < tokens.size() && tokens[i].text == texts[i]) continue;
    return Fail(Code::kCorruption,
                "{}: piece {} is not {}: not a model of NLLB; fetch the file again",
                vocabulary.file, i, texts[i]);
  }
  std::vector<VocabularyToken> numbered = {
      {.text = "<s>"}, {.text = "<pad>"}, {.text = "</s>"}, {.text = "<unk>"}};
  numbered.insert(numbered.end(), tokens.begin() + 3, tokens.end());
  tokens = std::move(numbered);
  KV_TRY(MarkSpecials(&vocabulary, vocabulary.file));
  AppendLanguages(NllbLanguages(), "", &vocabulary);
  tokens.push_back({.text = "<mask>", .kind = TokenKind::kControl});
  if (tokens.size() <= vocab_size && vocab_size < tokens.size() + kMaxPadding) return vocabulary;
  return Fail(Code::kCorruption,
              "{}: its pieces and {} languages are {} ids, but the model has {}; {}",
              vocabulary.file, NllbLanguages().size(), tokens.size(), vocab_size, kFetch);
}

}  // namespace kvasir
