// Tokenizer: text to ids and back, from a Hugging Face tokenizer.json.
#pragma once

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

struct EncodeOptions {
  bool add_special = true;    // run the post-processor (BOS ...)
  bool parse_special = true;  // text such as "<|end|>" becomes the special token
  // Byte ranges [begin, end) of the text, ascending, in which no added token is recognised whatever
  // parse_special says: what users wrote in a chat. A token that overlaps one is not recognised.
  std::vector<std::pair<size_t, size_t>> literal;
};

// Immutable after Load; thread-safe.
class Tokenizer {
 public:
  // From the bytes of tokenizer.json and, when there, tokenizer_config.json (bos_token, eos_token,
  // add_bos_token, chat_template). kCorruption or kUnsupported name the component and the fix.
  static Result<std::unique_ptr<Tokenizer>> Parse(std::string_view tokenizer_json,
                                                  std::string_view tokenizer_config_json);
  virtual ~Tokenizer() = default;

  // kInvalidArgument when text is no UTF-8. Ids equal those of Hugging Face `tokenizers`.
  virtual Result<std::vector<TokenId>> Encode(std::string_view text,
                                              const EncodeOptions& options = {}) const = 0;
  // The text of ids as `tokenizers` decodes them; unknown ids decode to nothing.
  virtual std::string Decode(std::span<const TokenId> ids, bool skip_special = true) const = 0;

  virtual uint32_t vocab_size() const = 0;  // largest id + 1
  virtual std::optional<TokenId> IdOf(std::string_view token) const = 0;
  virtual std::string_view TokenText(TokenId id) const = 0;  // as in the vocabulary; "" if none
  virtual bool IsSpecial(TokenId id) const = 0;
  virtual std::optional<TokenId> bos() const = 0;
  virtual std::optional<TokenId> eos() const = 0;
  virtual const std::string& bos_text() const = 0;
  virtual const std::string& eos_text() const = 0;
  virtual const std::string& chat_template() const = 0;  // "" if none
  virtual const Digest& digest() const = 0;              // of the tokenizer's content
};

// Streaming detokenizer of one sequence. Never emits half a UTF-8 character: bytes wait until the
// character is whole, and Finish turns what is left into U+FFFD. The pieces joined equal
// Decode(all ids). One thread at a time.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer, bool skip_special = true);
  std::string Append(TokenId id);  // the text that became certain
  std::string Finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  // The owner of text/ fills in the rest.
};

}  // namespace kvasir
