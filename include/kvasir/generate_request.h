// GenerateRequest: one prompt, and what an Engine is to make of it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvasir/adapters.h"
#include "kvasir/answer_format.h"
#include "kvasir/pooling.h"
#include "kvasir/prompt_spans.h"
#include "kvasir/remote.h"
#include "kvasir/request_trace.h"
#include "kvasir/retention.h"
#include "kvasir/sampling_params.h"
#include "kvasir/types.h"

namespace kvasir {

// What a request may reuse from the cache.
enum class Reuse {
  kAll,
  kBlocks,  // no Cursor: the last prompt token is computed even if all tokens are cached
  kNothing  // all tokens are computed, and none is shared
};

// What only clients of llama.cpp's server ask for.
struct LlamaQuirks {
  // Logprobs are of the distribution that the token was drawn from, after all of SamplingParams;
  // alternatives that cannot be drawn are left out.
  bool sampled_logprobs = false;
  // From the first token on: after it, a choice whose text has a line end finishes with kLength.
  std::optional<uint64_t> line_timeout_ms;
  // RetentionChoice::keep, where the server's default or the request drops tokens at all.
  std::optional<int32_t> n_keep;
  // After the answer's first line end, a line with fewer spaces and tabs ends the choice (kLength);
  // its text ends with them. 0: no limit.
  uint32_t min_indent = 0;
};

struct CompiledFormat;  // of the engine alone

struct GenerateRequest {
  std::string tenant = "default";  // who is charged
  // The owner of the cache that it uses, if not the tenant: a group of tenants.
  std::optional<std::string> cache_owner;
  // Each text: a separate cache of that owner (KvCache::EnterNamespace). Absent: the owner's main
  // one.
  std::optional<std::string> cache_salt;
  // What an encoder-decoder model reads, and its answers depend on: at least one token, at most the
  // context. `prompt` is then what its decoder begins with: ModelCard::decoder_start, and mostly a
  // language. Empty for all other models.
  std::vector<TokenId> source;
  std::vector<TokenId> prompt;
  // Prompt index where message i ends, ascending; Miss::message_index comes from it, and layers
  // with a window keep what a prompt needs that goes on from there.
  std::vector<uint32_t> message_ends;
  bool begins_with_system = false;  // message 0 is the system's: retention may keep it whole
  SamplingParams sampling;
  uint32_t max_tokens = std::numeric_limits<uint32_t>::max();  // clipped to the context; may be 0
  int32_t priority = 0;  // among the tenant's requests; lower first
  // From submission. Passed before the first token: kDeadlineExceeded. Passed later: the answer
  // ends with kLength and what it has.
  std::optional<uint64_t> timeout_ms;
  uint32_t n = 1;  // choices: forks that share the prompt's blocks
  // Instead of sampling: the choices are the n best hypotheses, the best first, and all come at the
  // end. Of SamplingParams only repetition_penalty counts, over log probabilities. Tokens of the
  // prompt after the first one have log probability 0. REQUIRES: the model has an encoder; a
  // prompt of 1 or 2 tokens; n <= beams; no stop strings, format or logprobs.
  std::optional<BeamParams> beams;
  uint32_t min_tokens = 0;            // of the answer, before which no end token comes
  uint32_t no_repeat_ngram_size = 0;  // no so many tokens come twice in prompt and answer; 0: any
  std::vector<std::string> stop;
  std::vector<TokenId> stop_ids;
  // What the answers may be. They end with kStop where nothing may follow, and with an error where
  // no token can continue them. Where the most likely token is not legal, another one is taken;
  // what a sampled token is chosen by is the model's distribution over the legal ones.
  std::optional<AnswerFormat> format;
  std::shared_ptr<const CompiledFormat> compiled_format;  // Engine::CompileFormats
  bool ignore_eos = false;
  bool echo_special = false;           // the text includes special tokens
  std::vector<TokenId> shown_special;  // else these only
  std::optional<uint32_t> logprobs;    // number of top alternatives, 0..20; absent: none
  // Event::scored has the prompt's tokens but the first, each once, with their logprobs, before or
  // with the first token of the answer. REQUIRES: logprobs, and Reuse::kNothing.
  bool scores_prompt = false;
  // Event::embedding has the prompt's embedding, not normed. REQUIRES: max_tokens is 0, and n 1; no
  // source and no spans; a retention that keeps all; for kMean Reuse::kNothing.
  std::optional<Pooling> embeds;
  // Events of choice 0 have `progress`, from the prompt's first step on.
  bool reports_progress = false;
  LlamaQuirks llama_quirks;
  // Adapters that it is computed with, and no others; absent: those whose scale is not 0
  // (AdapterCard::scale). Each id once; scales up to kMaxAdapterScale.
  std::optional<std::vector<AdapterChoice>> adapters;
  // Engine::ChooseAdapters: what `adapters` were then. Absent: whatever they are.
  std::optional<std::string> adapter_digest;
  Reuse reuse = Reuse::kAll;
  // Beginnings of the prompt that idle longer than others: their whole blocks are evicted after all
  // without a mark, for ttl_s seconds since the last use. The last kMaxKeeps count.
  struct Keep {
    uint32_t tokens = 0, ttl_s = 0;
  };
  static constexpr size_t kMaxKeeps = 4;
  std::vector<Keep> keeps;
  bool use_disk = true;  // false: the disk is neither read nor written for it, nor the remote tier
  RemoteUse use_remote = RemoteUse::kReadWrite;
  // What its sequences keep of themselves; absent: EngineOptions::retention. With another policy
  // than kFull max_tokens is clipped to kMaxRetainedTokens alone; where it is the largest number,
  // the answer may have as many tokens as the context.
  std::optional<RetentionChoice> retention;
  // Parts of the prompt that are computed apart from what stands before them, and found by others
  // wherever they stand. Absent or empty: none. REQUIRES: no retention, no scores_prompt.
  std::optional<PromptSpans> spans;
  // Tokens of a draft, at most; 0: none. Absent: EngineOptions::draft_max, which limits it too.
  std::optional<uint32_t> draft_max;
  // What the answer may begin with or quote: drafted, never believed.
  std::vector<TokenId> prediction;
  // The answer that is taken, whatever is drawn: for measuring how fast a known answer comes.
  // REQUIRES: no beams and no format.
  std::vector<TokenId> replayed;
  // The share of the draft model's tokens that are made right, in a replayed answer, and the others
  // wrong. Absent: they are as the draft model says.
  std::optional<double> replayed_accept;
  std::optional<uint32_t> chunk_tokens;  // prefill at most this many rows a step; at least 1
  // Work for later, which no client waits for: it runs while no other request waits or runs, and
  // ends with kCancelled as soon as one comes. It has no place in queues, takes nothing from what
  // its tenant may have, and statistics count its tokens alone (EngineStats::prepared_tokens).
  // REQUIRES: max_tokens is 0.
  bool only_when_idle = false;
  // Its prompt was read under another Identity before: a miss without another known reason has
  // kIdentityChanged in the receipt.
  bool identity_changed = false;
  // A miss of reason kDiverged is not counted: the caller finds out more and calls CountMiss.
  bool caller_explains = false;
  // Receives raw logits [vocab] before sampling: one call for each computed row at a position >=
  // logits_from, on the engine's thread. Position p holds the logits after token p. Rows that came
  // from the cache have no logits, except the last row of a prompt that a Cursor answers. Each
  // choice gets each position once; choice 0 gets the prompt's rows.
  std::function<void(uint32_t choice, uint32_t position, std::span<const float>)> on_logits;
  uint32_t logits_from = 0;
  std::vector<std::string> ignored;  // copied into the receipt
  bool clock_in_prompt = false;      // the same
  CuredLines cured;                  // the same
  std::optional<std::string> id;     // what a server calls it, for SequenceState
  // Absent: no trace is kept. Called once, after the last event, as a sink is; must not throw.
  std::function<void(RequestTrace trace)> on_trace;
};

}  // namespace kvasir
