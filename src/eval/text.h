// What `kvasir eval` reads to a model: a text cut into windows, and probes of recall.
#pragma once

#include <string>
#include <vector>

#include "kvasir/engine.h"
#include "text/prompt.h"

namespace kvasir::eval {

// A conversation that ends with a question, and what its answer must hold.
struct Probe {
  std::string kind;   // "recall", "unknown"; "probe" where the file says none
  std::string where;  // "FILE:12"
  std::vector<ChatMessage> messages;
  std::string expect;  // the answer is right if it has these words
  std::string answer;  // the whole expected sentence; may be empty
};

// JSON lines: {"messages": [{"role", "content"}, ...], "expect", "kind"?, "answer"?}; other keys
// are ignored, empty lines skipped. kInvalidArgument and kNotFound name file, line and what is
// wrong.
Result<std::vector<Probe>> ReadProbes(const std::string& path);

// The prompt of a probe, ending where the answer begins. The same on every day, whatever the chat
// template writes.
Result<std::vector<TokenId>> PromptOf(const Engine& engine, const Probe& probe);

struct TextLimits {
  uint64_t tokens = 0;         // that are read
  uint32_t window_tokens = 0;  // the most of one window
};

// Each window is a sequence of its own; token i + 1 is what token i should foretell.
struct EvalText {
  std::string source;                         // for people
  std::vector<std::vector<TokenId>> windows;  // each of at least kMinWindowTokens
  uint64_t scored_tokens() const;             // all but the last of each window
};
inline constexpr uint32_t kMinWindowTokens = 32;

// The start of a UTF-8 file, cut into windows that each begin with BOS where the tokenizer adds
// one. What looks like a special token is text. A rest that is shorter than kMinWindowTokens is
// left out. kNotFound, kInvalidArgument (empty, binary, not UTF-8 and where, too short),
// kUnsupported (no tokenizer).
Result<EvalText> TextOfFile(const Engine& engine, const std::string& path,
                            const TextLimits& limits);

// Token ids as a JSON array or apart by white space, at most limits.tokens of them, cut into
// windows as they are: no BOS is added. Needs no tokenizer. kNotFound, kInvalidArgument (a word
// that is no id and its offset, an id outside of the vocabulary, a file that is cut short, empty,
// too short or over 64 MiB).
Result<EvalText> TextOfIds(const Engine& engine, const std::string& path, const TextLimits& limits);

// The probes' conversations with their expected answers, one window each, taken from all over the
// file so that every kind and length has its share. A longer one is cut. Errors as above.
Result<EvalText> TextOfProbes(const Engine& engine, const std::vector<Probe>& probes,
                              const TextLimits& limits);

}  // namespace kvasir::eval
