#include "text/tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_object.h"
#include "base/result.h"
#include "base/utf8.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/byte_level.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/piece_store.h"
#include "text/post_processor.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_config.h"
#include "text/vocabulary_parts.h"

namespace kvasir {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;

// How the decoder decodes an added token: like any other token (as `tokenizers` does), or to the
// text that it matches. The two differ when a byte-level vocabulary adds a letter beyond ASCII: as
// any other token, DeepSeek's token for U+00FC would decode to the byte FC, and that to U+FFFD.
enum class AddedText { kAsATokensIs, kAsItReads };

class BpeTokenizer : public Tokenizer {
 public:
  // json: a tokenizer.json, of which "model" is `bpe`.
  static Result<std::unique_ptr<BpeTokenizer>> Build(const nlohmann::json& json, Bpe bpe,
                                                     TokenizerConfig config, AddedText added_text,
                                                     const Digest& digest);
  void SetSources(std::unique_ptr<Tokenizer> sources) { sources_ = std::move(sources); }

  Result<std::vector<TokenId>> Encode(std::string_view text,
                                      const EncodeOptions& options) const override;
  std::string Decode(std::span<const TokenId> ids, SpecialTokens special) const override;
  std::unique_ptr<TokenDecoder> StartDecoder(SpecialTokens special) const override;
  ReadsBack HowReads(std::span<const TokenId> ids, std::string_view text) const override;
  std::optional<TokenBytes> BytesOfTokens() const override;

  uint32_t vocab_size() const override { return vocab_size_; }
  std::optional<TokenId> IdOf(std::string_view token) const override {
    const AddedToken* added = added_.Find(token);
    return added != nullptr ? added->id : bpe_.IdOf(token);
  }
  std::string_view TokenText(TokenId id) const override {
    const AddedToken* added = added_.Find(id);
    return added != nullptr ? std::string_view(added->content) : bpe_.TextOf(id);
  }
  bool IsSpecial(TokenId id) const override {
    const AddedToken* added = added_.Find(id);
    return added != nullptr && added->special;
  }
  std::optional<TokenId> bos() const override { return bos_; }
  std::optional<TokenId> eos() const override { return eos_; }
  const std::string& bos_text() const override { return bos_text_; }
  const std::string& eos_text() const override { return eos_text_; }
  const Digest& digest() const override { return digest_; }
  const Tokenizer& sources() const override {
    return sources_ ? *sources_ : static_cast<const Tokenizer&>(*this);
  }

 private:
  BpeTokenizer(Bpe bpe, Decoder decoder) : bpe_(std::move(bpe)), decoder_(std::move(decoder)) {}
  bool NameIds(TokenizerConfig& config) const;
  void Adopt(TokenizerConfig config);
  Status EncodePiece(const MarkedText& all, const AddedTokens::Part& part,
                     const EncodeOptions& options, LiteralRule& rule, std::vector<TokenId>* ids,
                     ReadsBack* reads_back) const;
  template <typename Append>
  Status EncodeOnce(const Piece& piece, const EncodeOptions& options, std::vector<TokenId>* ids,
                    ReadsBack* reads_back, const Append& append) const;
  Status EncodeText(MarkedText text, TextStart start, const EncodeOptions& options,
                    LiteralRule& rule, std::vector<TokenId>* ids) const;
  Status EncodeWords(std::string_view text, TextStart start, Bpe::Special special,
                     const EncodeOptions& options, std::vector<TokenId>* ids) const;

  Bpe bpe_;
  std::unique_ptr<Normalizer> normalizer_;
  AddedTokens added_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  Decoder decoder_;
  PostProcessor post_processor_;
  uint32_t vocab_size_ = 0;
  std::optional<TokenId> bos_, eos_;
  std::string bos_text_, eos_text_;
  AddedText added_text_ = AddedText::kAsATokensIs;
  Digest digest_{};
  std::unique_ptr<Tokenizer> sources_;  // null: this one
};

const nlohmann::json& Component(const nlohmann::json& json, const char* name) {
  static const nlohmann::json kAbsent;
  const auto found = json.find(name);
  return found == json.end() ? kAbsent : *found;
}

Result<std::unique_ptr<BpeTokenizer>> BpeTokenizer::Build(const nlohmann::json& json, Bpe bpe,
                                                          TokenizerConfig config,
                                                          AddedText added_text,
                                                          const Digest& digest) {
  KV_ASSIGN(Decoder decoder, Decoder::Parse(Component(json, "decoder")));
  std::unique_ptr<BpeTokenizer> tokenizer(new BpeTokenizer(std::move(bpe), std::move(decoder)));
  KV_ASSIGN(tokenizer->normalizer_, Normalizer::Parse(Component(json, "normalizer")));
  KV_ASSIGN(tokenizer->pre_tokenizer_, PreTokenizer::Parse(Component(json, "pre_tokenizer")));
  KV_ASSIGN(tokenizer->post_processor_, PostProcessor::Parse(Component(json, "post_processor")));
  const auto parse_added = [&] {
    return AddedTokens::Parse(Component(json, "added_tokens"), tokenizer->bpe_,
                              *tokenizer->normalizer_, config.bos.value_or(""),
                              config.eos.value_or(""));
  };
  KV_ASSIGN(tokenizer->added_, parse_added());
  if (tokenizer->NameIds(config)) {
    KV_ASSIGN(tokenizer->added_, parse_added());
  }
  tokenizer->Adopt(std::move(config));
  tokenizer->added_text_ = added_text;
  tokenizer->digest_ = digest;
  return tokenizer;
}

// Gives the ids of special tokens their texts. False when none of them has a text.
bool BpeTokenizer::NameIds(TokenizerConfig& config) const {
  const auto name = [this](const std::optional<TokenId>& id, std::optional<std::string>& text) {
    if (!id || text || TokenText(*id).empty()) return false;
    text = std::string(TokenText(*id));
    return true;
  };
  const bool bos = name(config.bos_id, config.bos), eos = name(config.eos_id, config.eos);
  return bos || eos;
}

void BpeTokenizer::Adopt(TokenizerConfig config) {
  TokenId max_id = bpe_.max_id();
  for (const AddedToken& token : added_.tokens()) max_id = std::max(max_id, token.id);
  vocab_size_ = static_cast<uint32_t>(max_id + 1);
  bos_text_ = config.bos.value_or("");
  eos_text_ = config.eos.value_or("");
  if (config.bos) bos_ = IdOf(bos_text_);
  if (config.eos) eos_ = IdOf(eos_text_);
  // A post-processor that adds tokens decides alone, unless another file (a GGUF file beside it)
  // has add_bos_token or add_eos_token. Without such a post-processor the config decides.
  auto &prefix = post_processor_.prefix, &suffix = post_processor_.suffix;
  const bool silent = prefix.empty() && suffix.empty();
  if (bos_ && (silent || config.decides_bos)) {
    std::erase(prefix, *bos_);
    if (config.add_bos) prefix.insert(prefix.begin(), *bos_);
  }
  if (eos_ && (silent || config.decides_eos)) {
    std::erase(suffix, *eos_);
    if (config.add_eos) suffix.push_back(*eos_);
  }
  std::vector<bool> controls(vocab_size_, false);
  for (const AddedToken& token : added_.tokens()) {
    if (token.control) controls[static_cast<size_t>(token.id)] = true;
  }
  for (const auto& id : {bos_, eos_}) {
    if (id) controls[static_cast<size_t>(*id)] = true;
  }
  bpe_.Protect(std::move(controls));
}

// Returns flags of the bytes that users wrote; empty if they wrote none.
Result<std::string> FlagsOf(std::string_view text, const EncodeOptions& options) {
  std::string flags;
  size_t done = 0;
  for (const auto& [begin, end] : options.literal) {
    if (begin < done || end < begin || end > text.size()) {
      return Fail(
          Code::kInvalidArgument,
          "tokenizer: literal range [{}, {}) is out of order or outside of the {} bytes of text",
          begin, end, text.size());
    }
    if (flags.empty()) flags.assign(text.size(), '\0');
    std::fill(flags.begin() + static_cast<ptrdiff_t>(begin),
              flags.begin() + static_cast<ptrdiff_t>(end), '\1');
    done = end;
  }
  return flags;
}

Status CheckCount(size_t num_tokens, size_t max_tokens) {
  if (num_tokens <= max_tokens) return {};
  return Fail(Code::kExhausted, "tokenizer: the text has more than {} tokens", max_tokens);
}

MarkedText Slice(const MarkedText& text, size_t begin, size_t end) {
  MarkedText slice{text.text.substr(begin, end - begin), ""};
  if (!text.literal.empty()) slice.literal = text.literal.substr(begin, end - begin);
  return slice;
}

Result<std::vector<TokenId>> BpeTokenizer::Encode(std::string_view text,
                                                  const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    return Fail(Code::kInvalidArgument, "tokenizer: text of {} bytes; at most {} are allowed",
                text.size(), kMaxTextBytes);
  }
  const size_t invalid = FirstInvalidUtf8(text);
  if (invalid != text.size()) {
    return Fail(Code::kInvalidArgument, "tokenizer: text is not UTF-8 at byte {}", invalid);
  }
  if (options.parts != nullptr) options.parts->clear();
  MarkedText marked{std::string(text), ""};
  KV_ASSIGN(marked.literal, FlagsOf(text, options));
  std::vector<TokenId> ids;
  ids.reserve(std::min(text.size() / 3, options.max_tokens) + 8);
  if (options.add_special) ids = post_processor_.prefix;
  const auto parse = options.parse_special ? ParseSpecial::kYes : ParseSpecial::kNo;
  LiteralRule rule(options.written);
  const auto visit = [&](const AddedTokens::Part& part) -> Status {
    ReadsBack reads_back = ReadsBack::kUnknown;
    if (part.id) {
      ids.push_back(*part.id);
      const bool is_whole = TokenText(*part.id).size() == part.end - part.begin;
      if (is_whole && decoder_.joins_bytes()) reads_back = ReadsBack::kAnywhere;
    } else {
      KV_TRY(EncodePiece(marked, part, options, rule, &ids, &reads_back));
    }
    if (options.parts != nullptr) options.parts->push_back({part.end, ids.size(), reads_back});
    return CheckCount(ids.size(), options.max_tokens);
  };
  KV_TRY(added_.Split(marked, AddedTokens::Stage::kPlain, parse, rule, visit));
  if (options.add_special) {
    ids.insert(ids.end(), post_processor_.suffix.begin(), post_processor_.suffix.end());
  }
  KV_TRY(CheckCount(ids.size(), options.max_tokens));
  return ids;
}

// Appends the ids that are kept of a piece, or those that `append` appends, which are kept then.
template <typename Append>
Status BpeTokenizer::EncodeOnce(const Piece& piece, const EncodeOptions& options,
                                std::vector<TokenId>* ids, ReadsBack* reads_back,
                                const Append& append) const {
  if (options.pieces == nullptr) return append();
  const size_t begin = ids->size();
  const std::optional<ReadsBack> kept = options.pieces->Find(piece, ids);
  if (!kept) KV_TRY(append());
  *reads_back = kept.value_or(ReadsBack::kUnknown);
  const bool finds = options.finds_reads_back && *reads_back == ReadsBack::kUnknown;
  const auto made = std::span<const TokenId>(*ids).subspan(begin);
  if (finds) *reads_back = HowReads(made, piece.text);
  if (!kept || *reads_back != *kept) options.pieces->Keep(piece, made, *reads_back);
  return {};
}

Bpe::Special SpecialOf(const EncodeOptions& options) {
  return options.parse_special && options.literal.empty() ? Bpe::Special::kAllowed
                                                          : Bpe::Special::kProtected;
}

// Encodes text between two tokens of the first kind.
Status BpeTokenizer::EncodePiece(const MarkedText& all, const AddedTokens::Part& part,
                                 const EncodeOptions& options, LiteralRule& rule,
                                 std::vector<TokenId>* ids, ReadsBack* reads_back) const {
  const TextStart first = options.at_start ? TextStart::kBegin : TextStart::kContinues;
  const TextStart start = part.begin == 0 ? first : TextStart::kInside;
  const auto encode = [&] {
    return EncodeText(Slice(all, part.begin, part.end), start, options, rule, ids);
  };
  // With tokens of the second kind, the pieces are what is between those.
  if (options.pieces == nullptr || added_.has(AddedTokens::Stage::kNormalized)) return encode();
  const size_t size = part.end - part.begin;
  const Piece piece{.text = std::string_view(all.text).substr(part.begin, size),
                    .literal = all.literal.empty()
                                   ? std::string_view()
                                   : std::string_view(all.literal).substr(part.begin, size),
                    .start = start,
                    .parses_special = options.parse_special};
  return EncodeOnce(piece, options, ids, reads_back, encode);
}

// Normalises text, then splits it at tokens of the second kind.
Status BpeTokenizer::EncodeText(MarkedText text, TextStart start, const EncodeOptions& options,
                                LiteralRule& rule, std::vector<TokenId>* ids) const {
  const auto parse = options.parse_special ? ParseSpecial::kYes : ParseSpecial::kNo;
  const Bpe::Special special = SpecialOf(options);
  text.start = start;
  KV_TRY(normalizer_->Apply(&text));
  const std::string_view all = text.text;
  return added_.Split(
      text, AddedTokens::Stage::kNormalized, parse, rule, [&](const auto& part) -> Status {
        if (part.id) {
          ids->push_back(*part.id);
          return CheckCount(ids->size(), options.max_tokens);
        }
        const std::string_view words = all.substr(part.begin, part.end - part.begin);
        const TextStart here = part.begin == 0 ? start : TextStart::kInside;
        const auto encode = [&] { return EncodeWords(words, here, special, options, ids); };
        if (!added_.has(AddedTokens::Stage::kNormalized)) return encode();
        const Piece piece{
            .text = words, .start = here, .parses_special = special == Bpe::Special::kAllowed};
        ReadsBack unused;  // of the normalised text
        return EncodeOnce(piece, options, ids, &unused, encode);
      });
}

Status BpeTokenizer::EncodeWords(std::string_view text, TextStart start, Bpe::Special special,
                                 const EncodeOptions& options, std::vector<TokenId>* ids) const {
  const auto encode = [&](const Words& words) -> Status {
    for (size_t i = 0; i < words.ranges.size(); ++i) {
      KV_TRY(bpe_.Encode(words.At(i), special, options.max_tokens, ids));
    }
    return CheckCount(ids->size(), options.max_tokens);
  };
  return pre_tokenizer_->ApplyInBatches({std::string(text), {{0, text.size(), start}}}, encode);
}

class BpeTokenDecoder : public TokenDecoder {
 public:
  // as_it_reads: null, or the added tokens that are decoded to their own text.
  BpeTokenDecoder(const Tokenizer& tokenizer, const Decoder& decoder,
                  const AddedTokens* as_it_reads, SpecialTokens special)
      : tokenizer_(tokenizer),
        as_it_reads_(as_it_reads),
        run_(decoder.Start()),
        special_(special) {}
  void Append(TokenId id, std::string* out) override {
    const std::string_view text = tokenizer_.TokenText(id);
    if (text.empty() || (special_ == SpecialTokens::kSkip && tokenizer_.IsSpecial(id))) return;
    if (as_it_reads_ == nullptr || as_it_reads_->Find(id) == nullptr) return run_.Append(text, out);
    std::string chars;
    for (char c : text) chars += ByteLevelChar(static_cast<uint8_t>(c));
    run_.Append(chars, out);
  }
  void Finish(std::string* out) override { run_.Finish(out); }

 private:
  const Tokenizer& tokenizer_;
  const AddedTokens* const as_it_reads_;
  DecoderRun run_;
  const SpecialTokens special_;
};

std::unique_ptr<TokenDecoder> BpeTokenizer::StartDecoder(SpecialTokens special) const {
  const AddedTokens* as_it_reads = added_text_ == AddedText::kAsItReads ? &added_ : nullptr;
  return std::make_unique<BpeTokenDecoder>(*this, decoder_, as_it_reads, special);
}

ReadsBack BpeTokenizer::HowReads(std::span<const TokenId> ids, std::string_view text) const {
  // What has a U+FFFD may be half a character, which other bytes would complete.
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  const bool reads = decoder_.joins_bytes() && text.find(kReplacement) == text.npos &&
                     Decode(ids, SpecialTokens::kShow) == text;
  return reads ? ReadsBack::kAnywhere : ReadsBack::kUnknown;
}

std::optional<TokenBytes> BpeTokenizer::BytesOfTokens() const {
  TokenBytes bytes;
  bytes.of.resize(vocab_size_);
  for (uint32_t id = 0; id < vocab_size_; ++id) {
    const auto token = static_cast<TokenId>(id);
    const std::string_view text = TokenText(token);
    const auto one = decoder_.BytesOf(text);
    if (!one) return std::nullopt;
    const bool as_it_reads = added_text_ == AddedText::kAsItReads && added_.Find(token) != nullptr;
    bytes.of[id] = as_it_reads ? std::string(text) : one->token;
    bytes.dropped_spaces = one->dropped_spaces;
  }
  return bytes;
}

std::string BpeTokenizer::Decode(std::span<const TokenId> ids, SpecialTokens special) const {
  std::string text;
  const auto decoder = StartDecoder(special);
  for (TokenId id : ids) decoder->Append(id, &text);
  decoder->Finish(&text);
  return text;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::Parse(std::string_view tokenizer_json,
                                                    std::string_view tokenizer_config_json,
                                                    std::string_view special_tokens_json) {
  KV_ASSIGN(const nlohmann::json json, ParseJsonObject(tokenizer_json, "tokenizer.json"));
  KV_ASSIGN(TokenizerConfig config,
            ParseTokenizerConfig(tokenizer_config_json, special_tokens_json));
  Sha256 digest;
  digest.UpdateU64(tokenizer_json.size())
      .Update(tokenizer_json)
      .UpdateU64(tokenizer_config_json.size())
      .Update(tokenizer_config_json);
  // Most models have everything in tokenizer_config.json; then the digest does not depend on the
  // other file.
  if (!config.additions.empty()) digest.Update(config.additions);
  const auto model = json.find("model");
  if (model == json.end()) return Fail(Code::kCorruption, "tokenizer.json: model is missing");
  KV_ASSIGN(Bpe bpe, Bpe::Parse(*model));
  return BpeTokenizer::Build(json, std::move(bpe), std::move(config), AddedText::kAsATokensIs,
                             digest.Finish());
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::Make(const Vocabulary& vocabulary) {
  KV_ASSIGN(const VocabularyParts parts, PartsOf(vocabulary));
  KV_ASSIGN(Bpe bpe, Bpe::Make(vocabulary));
  if (parts.whole_words) bpe.TakeWholeWords();
  TokenizerConfig config;
  config.bos_id = vocabulary.bos;
  config.eos_id = vocabulary.eos;
  config.add_bos = vocabulary.add_bos.value_or(parts.add_bos);
  config.add_eos = vocabulary.add_eos.value_or(false);
  const auto added = vocabulary.kind == VocabularyKind::kByteLevel ? AddedText::kAsItReads
                                                                   : AddedText::kAsATokensIs;
  KV_ASSIGN(auto tokenizer, BpeTokenizer::Build(parts.json, std::move(bpe), std::move(config),
                                                added, DigestOf(vocabulary)));
  if (vocabulary.sources) {
    KV_ASSIGN(auto sources, Make(*vocabulary.sources));
    tokenizer->SetSources(std::move(sources));
  }
  return tokenizer;
}

}  // namespace kvasir
