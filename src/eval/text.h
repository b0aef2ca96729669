// The input of `kvasir eval`: a text cut into windows, probes of recall, and sources to translate.
#pragma once

#include <string>
#include <vector>

#include "chat/prompt.h"
#include "kvasir/engine.h"
#include "text/languages.h"

namespace kvasir::eval {

// A conversation that ends with a question, and the words that its answer must contain.
struct Probe {
  std::string kind;   // "recall", "unknown"; "probe" if the file has no kind
  std::string where;  // "FILE:12"
  std::vector<ChatMessage> messages;
  std::string expect;  // the answer is right if it has these words
  std::string answer;  // the whole expected sentence; may be empty
};

// Reads JSON lines: {"messages": [{"role", "content"}, ...], "expect", "kind"?, "answer"?}; ignores
// other keys and empty lines. kInvalidArgument and kNotFound name file, line and the problem.
Result<std::vector<Probe>> ReadProbes(const std::string& path);

// Returns the prompt of a probe, ending where the answer begins. Does not depend on the day, even
// if the chat template writes the date.
Result<std::vector<TokenId>> PromptOf(const Engine& engine, const Probe& probe);

struct TextLimits {
  uint64_t tokens = 0;         // limit of all tokens
  uint32_t window_tokens = 0;  // limit of one window
};

// Each window is a separate sequence; the logits after token i should predict token i + 1.
struct EvalText {
  std::string source;  // for people
  // Each of at least kMinWindowTokens; with `sources` as long as the answers are.
  std::vector<std::vector<TokenId>> windows;
  // What an encoder-decoder model's encoder reads for each window; empty of all other models.
  std::vector<std::vector<TokenId>> sources;
  // Logits from this token of a window on count: 1 where the token after the start token is the
  // language, which is given.
  uint32_t first_scored = 0;
  uint64_t scored_tokens() const;  // of all windows, without the last of each
};
inline constexpr uint32_t kMinWindowTokens = 32;

// Reads the start of a UTF-8 file, cut into windows that each begin with BOS where the tokenizer
// adds one. Special tokens are read as plain text. Drops a rest that is shorter than
// kMinWindowTokens. kNotFound, kInvalidArgument (empty, binary, not UTF-8 and where, too short),
// kUnsupported (no tokenizer).
Result<EvalText> TextOfFile(const Engine& engine, const std::string& path,
                            const TextLimits& limits);

// Returns the token ids as a JSON array or separated by white space, at most limits.tokens of them,
// cut into windows without adding BOS. Does not need a tokenizer. kNotFound, kInvalidArgument (a
// word that is not an id, with its offset; an id outside of the vocabulary; a file that is cut
// short, empty, too short or over 64 MiB).
Result<EvalText> TextOfIds(const Engine& engine, const std::string& path, const TextLimits& limits);

// Returns the probes' conversations with their expected answers, one window each, taken from all
// parts of the file so that every kind and length is represented. Cuts longer conversations. Errors
// as above.
Result<EvalText> TextOfProbes(const Engine& engine, const std::vector<Probe>& probes,
                              const TextLimits& limits);

using Sources = std::vector<std::vector<TokenId>>;

// Returns each line of a UTF-8 file that is not empty, as a source in a frame; stops at
// limits.tokens. Errors as TextOfFile; kInvalidArgument names the line with more than
// limits.window_tokens tokens.
Result<Sources> SourcesOfFile(const Engine& engine, const std::string& path,
                              const SourceFrame& frame, const TextLimits& limits);

// Does as SourcesOfFile, of token ids as given: each line is a source, as TextOfIds reads a file.
Result<Sources> SourcesOfIds(const Engine& engine, const std::string& path,
                             const TextLimits& limits);

// Makes windows of the engine's greedy answers to the sources, with the start token and `target`,
// if the model has one, before them. REQUIRES: the model has an encoder. Errors are those of
// Generate.
Result<EvalText> TextOfSources(Engine& engine, const std::string& path, Sources sources,
                               const std::vector<TokenId>& target);

}  // namespace kvasir::eval
