// Embeddings: what a request gets of its prompt's final hidden states.
#include <vector>

#include "schedule/scheduler.h"

namespace kvasir {

// Adds rows of a prompt whose mean is wanted.
void Scheduler::AddMeanRows(const StepBatch::Rows& rows) {
  Request& request = *rows.request;
  if (request.spec.embeds != Pooling::kMean) return;
  for (uint32_t i = 0; i < rows.num_rows; ++i) {
    request.answer.mean_rows.Add(rows.position + i, runner_.hidden(rows.first_row + i));
  }
}

// Puts the embedding of a prompt into its event. `hidden`: as for StartChoices.
void Scheduler::Embed(Request& request, const float* hidden) {
  std::vector<float>& embedding = request.events.Of(0).embedding;
  if (request.spec.embeds == Pooling::kMean) {
    embedding = request.answer.mean_rows.Mean();
  } else if (hidden != nullptr) {
    embedding.assign(hidden, hidden + runner_.config().hidden_size);
  } else {
    embedding = request.answer.cursor_hidden;
  }
}

}  // namespace kvasir
