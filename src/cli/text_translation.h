// TextTranslation: translates the lines of TextLines, many at once, and gives them in their order.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/text_lines.h"
#include "cli/translation.h"
#include "kvasir/engine.h"
#include "text/languages.h"
#include "text/sentences.h"

namespace kvasir::cli {

struct TranslatedLine {
  std::string text;
  std::vector<Translation> sentences;  // one where lines are not split; none of an empty line
};

struct TranslationOptions {
  SourceFrame frame;  // of each text
  bool splits_sentences = false;
  float length_penalty = 1;  // of scores
  GenerateRequest request;   // all but source
};

// At most twice as many sentences are with the engine as can run at once, each with its beams or
// samples; 16 lines are read ahead for each sequence, 16 MiB of text and a line in all: memory does
// not grow with the input. One thread at a time.
class TextTranslation {
 public:
  // REQUIRES: the engine has an encoder and a tokenizer, and outlives this.
  TextTranslation(Engine& engine, TranslationOptions options);
  ~TextTranslation();

  // Translates all lines. `on_line` gets each, in order, as soon as it and those before it are
  // done; `on_progress` gets the tokens of answers so far. The first line that is not UTF-8, has
  // a source of more tokens than the engine's context, or fails ends it, after the lines before it:
  // kInvalidArgument with the line's place and the numbers, or the engine's error.
  Status Run(TextLines& lines, const std::function<void(const TranslatedLine&)>& on_line,
             const std::function<void(uint64_t tokens)>& on_progress);

 private:
  class Events;
  struct Answer;
  struct Line;

  void Take(TextLines& lines);  // what can be taken without waiting
  bool HasRoom() const;
  void Add(TextLine line);
  void FailLast(Error error);  // no line is taken after it
  void SubmitAll();
  // Submits the next request; false: the engine has no room now.
  Result<bool> Submit(Line& line, size_t part);
  Result<std::vector<TokenId>> SourceOf(std::string_view text) const;
  Status Deliver(const std::function<void(const TranslatedLine&)>& on_line);
  void Wait(TextLines& lines);
  void TakeEvents();

  Engine& engine_;
  const TranslationOptions options_;
  // Shared with the engine's sinks, which may be called after an early return.
  const std::shared_ptr<Events> events_;
  std::deque<std::unique_ptr<Line>> open_;  // not yet delivered
  size_t open_bytes_ = 0;                   // of their texts
  size_t in_flight_ = 0;                    // sentences
  uint64_t tokens_ = 0;
  bool wants_input_ = false;  // nothing was left to take
  bool failed_ = false;
};

}  // namespace kvasir::cli
