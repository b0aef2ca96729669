// Translation: what a request with a source answers, as commands show it.
#pragma once

#include <string>
#include <vector>

#include "kvasir/engine_event.h"
#include "kvasir/generate_request.h"

namespace kvasir::cli {

struct Hypothesis {
  std::string text;
  std::vector<TokenId> tokens;  // start, language and end included
  double score = 0;             // only if the request has beams or asked for logprobs
};

struct Translation {
  std::vector<Hypothesis> hypotheses;                // the best first; none of an empty text
  FinishReason finish_reason = FinishReason::kNone;  // of the best one
  Receipt receipt;

  std::string text() const { return hypotheses.empty() ? "" : hypotheses.front().text; }
};

// Makes a Translation of a request's events. The score of a sampled or greedy answer is what a beam
// search would give it: the sum of its log probabilities / length ** length_penalty; the start
// token does not count, the language does, and adds 0. One thread at a time.
class TranslationEvents {
 public:
  TranslationEvents(const GenerateRequest& request, float length_penalty);
  void Add(const Event& event);  // in their order
  Translation Take();            // REQUIRES: all events were added

 private:
  struct Choice {
    Hypothesis hypothesis;
    double sum = 0;  // of log probabilities
    FinishReason finish_reason = FinishReason::kNone;
    bool exists = true;  // a search may find fewer hypotheses than it was asked for
  };
  bool is_search_;
  float length_penalty_;
  std::vector<Choice> choices_;
  Receipt receipt_;
};

}  // namespace kvasir::cli
