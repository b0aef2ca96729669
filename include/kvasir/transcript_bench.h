// TranscriptBench: how much faster drafts make known answers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kvasir/drafts.h"
#include "kvasir/engine_options.h"
#include "kvasir/model_card.h"
#include "kvasir/status.h"
#include "kvasir/types.h"

namespace kvasir {

// What was asked, and the answer that it got.
struct Transcript {
  std::vector<TokenId> prompt, answer;
  uint32_t line = 0;  // of its file, from 1 on, for messages
};

struct TranscriptBenchOptions {
  EngineOptions engine;  // `parallel` is not used
  std::vector<Transcript> transcripts;
  uint32_t at_once = 1;  // transcripts that are answered together; the last group may have fewer
  uint32_t repeats = 1;  // of all transcripts
  std::optional<double> draft_accept;  // GenerateRequest::replayed_accept
  std::function<void(const std::string& what)> progress;
};

// Speeds of answers alone: the prompts are in the cache.
struct TranscriptSpeed {
  bool again = false;                  // the same request once more: the cache has its answer
  uint64_t tokens = 0;                 // of all answers
  double off_tok_s = 0, on_tok_s = 0;  // all tokens over all the time, without drafts and with them
  double speedup = 0, speedup_min = 0, speedup_max = 0;  // of groups; the median first
  DraftReceipt drafts;
};

struct TranscriptReport {
  std::vector<TranscriptSpeed> speeds;  // the first time, and again
  uint32_t num_transcripts = 0, at_once = 0;
  ModelCard card;
  std::string kv_format, target;
};

// Replays transcripts: all is as in a server, except that the transcript's token replaces the drawn
// one. Each group is answered without drafts and with them, in turns, each time in a cache
// that has its prompts alone. kInvalidArgument, of the field "transcript": nothing to replay, an id
// that the model does not know, or a transcript longer than the context; the message has the line.
Result<TranscriptReport> RunTranscripts(const TranscriptBenchOptions& options);

}  // namespace kvasir
