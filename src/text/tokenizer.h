// Tokenizer: text to ids and back, from a Hugging Face tokenizer.json or another vocabulary.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "kvasir/status.h"
#include "kvasir/types.h"

namespace kvasir {

class PieceSpace;
struct Vocabulary;

// Whether ids decode to the text that they stand for, whatever is before and after them.
enum class ReadsBack : uint8_t { kUnknown, kAnywhere };

// A part of a text that was encoded by itself: a special token, or what is between two of them.
struct EncodedPart {
  size_t text_end = 0;  // in bytes; the part begins where the one before it ends
  size_t ids_end = 0;   // in the ids of the whole
  ReadsBack reads_back = ReadsBack::kUnknown;
};

struct EncodeOptions {
  bool add_special = true;  // run the post-processor (BOS ...)
  // Text such as "<|end|>" becomes the special token. When false, added tokens that the file does
  // not call special still count (as in `tokenizers` and llama.cpp).
  bool parse_special = true;
  // Byte ranges [begin, end) of the text, ascending: what users wrote in a chat. Whatever
  // parse_special says, no token that could mark a turn is recognised where it overlaps one: no
  // special token, BOS or EOS, nothing that looks like `<|...|>`, and of the other added tokens
  // none that is in `written`, except <think> and <tool_call> and their ends.
  std::vector<std::pair<size_t, size_t>> literal;
  // RenderedChat::written. Empty: of the other added tokens only those of white space, such as
  // phi-2's runs of spaces, are recognised in `literal`. REQUIRES: outlives the call.
  std::string_view written;
  // False: the text goes on from other text. Then the tokenizer does not put at its beginning what
  // it puts before the first word of a text and after each special token.
  bool at_start = true;
  // Where the ids of pieces between special tokens are looked up and kept: the ids are the same
  // without. Null: nowhere. REQUIRES: all that it keeps was encoded by this tokenizer.
  const PieceSpace* pieces = nullptr;
  // Null, or gets the parts of the text, in order, if the encoding succeeds.
  std::vector<EncodedPart>* parts = nullptr;
  bool finds_reads_back = false;  // and whether they read back, for the pieces that are kept
  // kExhausted when there are more; encoding stops soon after the limit.
  size_t max_tokens = std::numeric_limits<size_t>::max();
  // With parse_special = false or literal ranges, no merge and no look-up of a whole word yields
  // the id of a special token, of BOS or of EOS.
};

enum class SpecialTokens : uint8_t { kSkip, kShow };  // in the text of ids

// Text of ids that come one by one. One thread at a time.
class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  virtual void Append(TokenId id, std::string* out) = 0;  // adds the text that became certain
  virtual void Finish(std::string* out) = 0;              // and all that is left
};

// What ids add to a text, as bytes.
struct TokenBytes {
  std::vector<std::string> of;  // [vocab_size]; "" of an id without a token
  // A text of ids lacks so many spaces that its first tokens' bytes begin with.
  size_t dropped_spaces = 0;
};

// Immutable; thread-safe.
class Tokenizer {
 public:
  // Parses the bytes of tokenizer.json and, if it exists, tokenizer_config.json (bos_token,
  // eos_token, add_bos_token, add_eos_token). A key that it lacks (null counts as present, without
  // a token) is taken from special_tokens_json, which has the same keys, and bos_token_id and
  // eos_token_id for tokens without a text. add_bos_token and add_eos_token taken from there count
  // even if the post-processor of tokenizer.json adds tokens. kCorruption or kUnsupported name the
  // component and the fix.
  static Result<std::unique_ptr<Tokenizer>> Parse(std::string_view tokenizer_json,
                                                  std::string_view tokenizer_config_json,
                                                  std::string_view special_tokens_json = {});
  // Makes one from any other file. kCorruption as CheckVocabulary and Bpe::Make; kUnsupported for
  // an unknown `pre`, which the message names with the fix. Control and unknown tokens are special.
  static Result<std::unique_ptr<Tokenizer>> Make(const Vocabulary& vocabulary);
  virtual ~Tokenizer() = default;

  // kInvalidArgument when text is not UTF-8, over 1 GiB, or literal is not ascending inside it. Ids
  // equal those of Hugging Face `tokenizers`.
  virtual Result<std::vector<TokenId>> Encode(std::string_view text,
                                              const EncodeOptions& options = {}) const = 0;
  // Returns the text of ids as `tokenizers` decodes them; unknown ids decode to nothing.
  virtual std::string Decode(std::span<const TokenId> ids,
                             SpecialTokens special = SpecialTokens::kSkip) const = 0;
  // Decodes the ids alone to see. kUnknown where a tokenizer joins texts otherwise than as bytes.
  virtual ReadsBack HowReads(std::span<const TokenId> ids, std::string_view text) const = 0;
  // Returns what Decode runs over its ids. REQUIRES: the Tokenizer outlives the decoder.
  virtual std::unique_ptr<TokenDecoder> StartDecoder(SpecialTokens special) const = 0;

  // Absent: what an id adds depends on those around it. O(vocabulary).
  virtual std::optional<TokenBytes> BytesOfTokens() const = 0;

  virtual uint32_t vocab_size() const = 0;  // largest id + 1
  virtual std::optional<TokenId> IdOf(std::string_view token) const = 0;
  // Returns a token's text as in the vocabulary; "" if the id has no token.
  virtual std::string_view TokenText(TokenId id) const = 0;
  virtual bool IsSpecial(TokenId id) const = 0;
  virtual std::optional<TokenId> bos() const = 0;
  virtual std::optional<TokenId> eos() const = 0;
  virtual const std::string& bos_text() const = 0;
  virtual const std::string& eos_text() const = 0;
  virtual const Digest& digest() const = 0;  // of the tokenizer's content, and of sources()
  // Returns the tokenizer by which an encoder's sources are read: mostly this one. Lives as long as
  // this one.
  virtual const Tokenizer& sources() const = 0;
};

// Streaming detokenizer of one sequence. Never emits half a UTF-8 character: bytes wait until the
// character is whole, and Finish turns what is left into U+FFFD. The pieces joined equal
// Decode(all ids), for any ids. Time and memory per token do not grow with the sequence. A run of
// byte tokens of a SentencePiece-style vocabulary is certain only where it ends (one broken byte
// makes all of it U+FFFD), so up to 512 bytes of such a run wait. One thread at a time; movable.
class TextStream {
 public:
  // REQUIRES: tokenizer outlives the stream.
  explicit TextStream(const Tokenizer& tokenizer, SpecialTokens special = SpecialTokens::kSkip);
  // Shows only these of the special tokens. REQUIRES: `shown` outlives the stream.
  TextStream(const Tokenizer& tokenizer, std::span<const TokenId> shown);
  std::string Append(TokenId id);  // the text that became certain
  std::string Finish();            // once, at the end

 private:
  std::unique_ptr<TokenDecoder> decoder_;
  const Tokenizer* hides_ = nullptr;  // not null: special tokens that are not in shown_
  std::span<const TokenId> shown_;
};

}  // namespace kvasir
