// Added tokens: texts that become one id before any other step of tokenizing.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kvasir/status.h"
#include "kvasir/types.h"
#include "text/bpe.h"
#include "text/normalizer.h"

namespace kvasir {

struct AddedToken {
  std::string content;
  TokenId id = 0;
  bool single_word = false;  // not inside a word
  bool lstrip = false;       // swallows the white space before it
  bool rstrip = false;       // and after it
  bool normalized = false;   // matched in the normalised text
  bool special = false;      // from the file: left out of decoded text
  bool control = false;      // special, BOS or EOS: not recognised with parse_special = false
  bool blank = false;        // only white space: a run of spaces, not a marker
};

// Which tokens count.
enum class ParseSpecial { kNo, kYes };

// Which added tokens count in the literal bytes of a chat: those that cannot mark a turn. Special
// tokens, BOS and EOS never count there; nor do tokens that look like `<|...|>`, and those that the
// chat template may write, except marks inside of an answer (<think>, <tool_call>). For the time of
// one Encode; one thread.
class LiteralRule {
 public:
  // written: EncodeOptions::written; empty: only tokens of white space count.
  explicit LiteralRule(std::string_view written) : written_(written) {}
  bool Counts(const AddedToken& token);

 private:
  const std::string_view written_;
  std::unordered_map<TokenId, bool> known_;  // a token may be in the text a million times
};

// Leftmost-longest matches of the tokens, as `tokenizers` finds them. Immutable after Parse;
// thread-safe.
class AddedTokens {
 public:
  // A part of a text: a token's id, or absent for text that is processed further.
  struct Part {
    size_t begin, end;
    std::optional<TokenId> id;
  };
  enum class Stage { kPlain, kNormalized };

  // Parses the value of "added_tokens" (null: none). Ids as `tokenizers` gives them: the
  // vocabulary's, else the next free one. `bos` and `eos` are control tokens whatever the file
  // says.
  static Result<AddedTokens> Parse(const nlohmann::json& value, const Bpe& bpe,
                                   const Normalizer& normalizer, std::string_view bos,
                                   std::string_view eos);

  // Visits the parts of text, in order and without gaps (except the overlaps of `tokenizers`, where
  // a token swallows spaces that are a token themselves), until a visit fails. Where a token
  // overlaps a literal byte, `literal` decides too.
  Status Split(const MarkedText& text, Stage stage, ParseSpecial parse, LiteralRule& literal,
               const std::function<Status(const Part&)>& visit) const;

  const AddedToken* Find(TokenId id) const;
  const AddedToken* Find(std::string_view content) const;
  const std::vector<AddedToken>& tokens() const { return tokens_; }
  bool has(Stage stage) const { return !TrieOf(stage).nodes.empty(); }

 private:
  struct Node {
    std::vector<std::pair<uint8_t, uint32_t>> children;  // by byte, ascending
    int32_t token = -1;                                  // index into tokens_ that ends here
  };
  struct Trie {
    std::vector<Node> nodes;  // nodes[0] is the root; empty without tokens
    bool starts[256] = {};    // bytes that some token begins with
    // Returns the first byte from pos on that some token begins with; the end of the text without
    // one.
    size_t NextStart(std::string_view text, size_t pos) const;
    void Add(std::string_view text, int32_t token);
    // Returns the longest token at text[pos]; length 0 without one.
    std::pair<size_t, int32_t> Longest(std::string_view text, size_t pos) const;
  };
  const Trie& TrieOf(Stage stage) const { return stage == Stage::kPlain ? plain_ : normalized_; }
  bool Counts(const AddedToken& token, const MarkedText& text, size_t begin, size_t end,
              ParseSpecial parse, LiteralRule& literal) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, size_t> by_content_;
  std::unordered_map<TokenId, size_t> by_id_;
  Trie plain_, normalized_;
};

}  // namespace kvasir
