#include "cli/translation.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace kvasir::cli {

TranslationEvents::TranslationEvents(const GenerateRequest& request, float length_penalty)
    : is_search_(request.beams.has_value()), length_penalty_(length_penalty), choices_(request.n) {
  for (Choice& choice : choices_) {
    choice.hypothesis.tokens = request.prompt;
    choice.exists = !is_search_;
  }
}

void TranslationEvents::Add(const Event& event) {
  Choice& choice = choices_[event.choice];
  for (const GeneratedToken& token : event.tokens) {
    choice.hypothesis.tokens.push_back(token.id);
    choice.sum += static_cast<double>(token.logprob);
  }
  choice.hypothesis.text += event.text;
  if (event.finish_reason != FinishReason::kNone) choice.finish_reason = event.finish_reason;
  if (event.score) {
    choice.hypothesis.score = static_cast<double>(*event.score);
    choice.exists = true;
  }
  if (event.last) receipt_ = event.receipt;
}

Translation TranslationEvents::Take() {
  std::erase_if(choices_, [](const Choice& choice) { return !choice.exists; });
  if (!is_search_) {
    for (Choice& choice : choices_) {
      const double length = static_cast<double>(choice.hypothesis.tokens.size() - 1);
      choice.hypothesis.score = choice.sum / std::pow(length, double{length_penalty_});
    }
    std::ranges::stable_sort(choices_, std::ranges::greater(),
                             [](const Choice& choice) { return choice.hypothesis.score; });
  }
  Translation translation;
  translation.finish_reason =
      choices_.empty() ? FinishReason::kStop : choices_.front().finish_reason;
  for (Choice& choice : choices_) {
    translation.hypotheses.push_back(std::move(choice.hypothesis));
  }
  translation.receipt = std::move(receipt_);
  return translation;
}

}  // namespace kvasir::cli
