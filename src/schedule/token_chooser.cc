#include "schedule/token_chooser.h"

#include <algorithm>
#include <string_view>

#include "base/random.h"
#include "chat/answer_grammar.h"
#include "grammar/token_trie.h"
#include "sampling/beam_search.h"

namespace kvasir {
namespace {

// Tokens that are drawn at a place of an answer's format before it is given up.
constexpr uint32_t kMaxTries = 16;
// Steps, about 1 ms, to find out why a format has no token.
constexpr uint64_t kLimitSteps = 150'000;

// A sampler has the memory of a few logit rows. More samplers would save only microseconds.
constexpr uint32_t kMaxSamplers = 8;
// A batch with fewer logits is drawn in one thread: waking the others costs more.
constexpr size_t kMinParallelLogits = 1 << 16;

void SetLegal(std::span<uint64_t> legal, TokenId id, bool is_legal) {
  const uint64_t bit = uint64_t{1} << (static_cast<uint32_t>(id) % 64);
  uint64_t& word = legal[static_cast<uint32_t>(id) / 64];
  word = is_legal ? word | bit : word & ~bit;
}

uint32_t NumSamplers(uint32_t threads, uint32_t parallel) {
  return std::min({threads, parallel, kMaxSamplers});
}

}  // namespace

TokenChooser::TokenChooser(Runner& runner, uint32_t parallel, std::span<const TokenId> end_tokens)
    : runner_(runner),
      end_tokens_(end_tokens),
      held_rows_(parallel, runner.config().hidden_size, runner.config().vocab_size) {
  const uint32_t vocab_size = runner.config().vocab_size;
  const uint32_t num_samplers = NumSamplers(runner.threads(), parallel);
  samplers_.reserve(num_samplers);
  for (uint32_t i = 0; i < num_samplers; ++i) samplers_.emplace_back(vocab_size);
  legal_.resize(num_samplers, std::vector<uint64_t>(MaskWords(vocab_size)));
  draws_.reserve(parallel);
}

uint64_t TokenChooser::BytesFor(uint32_t vocab_size, uint32_t hidden_size, uint32_t threads,
                                uint32_t parallel) {
  return HeldRows::BytesFor(parallel, hidden_size, vocab_size) +
         NumSamplers(threads, parallel) *
             (Sampler::BytesFor(vocab_size) + MaskWords(vocab_size) * sizeof(uint64_t));
}

uint64_t TokenChooser::bytes() const {
  uint64_t bytes = held_rows_.bytes();
  for (const Sampler& sampler : samplers_) bytes += sampler.bytes();
  for (const auto& legal : legal_) bytes += legal.capacity() * sizeof(legal[0]);
  return bytes;
}

void TokenChooser::Clear() {
  draws_.clear();
  num_used_ = std::max<size_t>(num_used_, 1);  // Logprobs uses the first one
}

void TokenChooser::Add(Request& request, Sequence& sequence, const float* hidden,
                       std::span<const float> logits, bool is_drafted) {
  if (sequence.format && !sequence.format_choice) {
    sequence.format_choice = std::make_unique<FormatChoice>(
        *sequence.format, std::span<const TokenId>(sequence.tokens).subspan(sequence.format_end),
        *request.format.masks, held_rows_.Take());
  }
  draws_.push_back({.request = &request,
                    .sequence = &sequence,
                    .hidden = hidden,
                    .logits = logits,
                    .id = std::nullopt,
                    .is_drafted = is_drafted});
}

void TokenChooser::Run(std::span<const double> format_steps) {
  for (Draw& draw : draws_) {
    if (!draw.sequence->format_choice) continue;
    // The rows of a draft share what one row has.
    const DraftCheck& check = draw.sequence->check;
    const uint64_t taken = check.num_drafted > 0 ? check.format_steps : 0;
    const auto steps = static_cast<uint64_t>(format_steps[draw.request->tenant]);
    draw.steps = WalkSteps(steps - std::min(steps, taken));
  }
  if (draws_.size() * runner_.config().vocab_size < kMinParallelLogits) {
    for (Draw& draw : draws_) RunDraw(draw, 0);
    return;
  }
  next_draw_.store(0, std::memory_order_relaxed);
  const auto num = static_cast<uint32_t>(std::min(samplers_.size(), draws_.size()));
  num_used_ = std::max<size_t>(num_used_, num);
  runner_.ForEach(num, [this](uint32_t i) {
    for (uint32_t at; (at = next_draw_.fetch_add(1, std::memory_order_relaxed)) < draws_.size();) {
      RunDraw(draws_[at], i);
    }
  });
}

// Runs on any thread of the runner. It reads the request and its sequence, and changes nothing but
// the sequence's format_choice.
void TokenChooser::RunDraw(Draw& draw, uint32_t sampler) {
  const Request& request = *draw.request;
  Choose(draw, sampler);
  if (!draw.id) return;
  draw.token.id = *draw.id;
  if (!request.spec.logprobs || draw.is_drafted) return;
  if (request.spec.llama_quirks.sampled_logprobs) {
    const std::span<const uint64_t> legal = draw.sequence->format_choice
                                                ? draw.sequence->format_choice->legal()
                                                : std::span<const uint64_t>();
    const std::optional<InfillWords> words = InfillWordsOf(request, legal);
    samplers_[sampler].SampledLogprobs(draw.logits, request.spec.sampling, draw.sequence->tokens,
                                       request.prompt_tokens(), *request.spec.logprobs, &draw.token,
                                       legal, words ? &*words : nullptr);
  } else {
    samplers_[sampler].Logprobs(draw.logits, *request.spec.logprobs, &draw.token);
  }
}

std::optional<TokenId> TokenChooser::Sample(const Draw& draw, uint32_t sampler,
                                            std::span<const uint64_t> legal) {
  const Request& request = *draw.request;
  const Sequence& sequence = *draw.sequence;
  const double u = DrawUniform(request.seed, sequence.choice, sequence.tokens.size());
  const std::optional<InfillWords> words = InfillWordsOf(request, legal);
  return samplers_[sampler].Sample(draw.logits, request.spec.sampling, sequence.tokens,
                                   request.prompt_tokens(), u, legal, words ? &*words : nullptr);
}

void TokenChooser::Choose(Draw& draw, uint32_t sampler) {
  if (draw.sequence->format_choice) return ChooseOfFormat(draw, sampler);
  if (!ForbidsTokens(draw)) {
    draw.id = Sample(draw, sampler, {});
    return;
  }
  std::vector<uint64_t>& legal = legal_[sampler];
  std::ranges::fill(legal, ~uint64_t{0});
  ForbidTokens(draw, legal);
  draw.id = Sample(draw, sampler, legal);
}

// Chooses a token that the format allows. Where the steps are over too early, the draw waits: it is
// repeated when more is known, and finds the same.
void TokenChooser::ChooseOfFormat(Draw& draw, uint32_t sampler) {
  const Request& request = *draw.request;
  const GenerateRequest& spec = request.spec;
  const Sequence& sequence = *draw.sequence;
  FormatChoice& choice = *sequence.format_choice;
  const TokenTrie& trie = request.format.masks->trie();
  const auto wait = [&] {
    draw.id.reset();
    draw.waits = true;
  };
  const Matcher* const at = choice.At(draw.steps);
  if (at == nullptr) return wait();
  const Matcher& format = *at;
  const bool forbids = ForbidsTokens(draw);
  if (spec.sampling.temperature == 0 && !spec.llama_quirks.sampled_logprobs &&
      !spec.sampling.infill && !forbids && !choice.best_is_illegal) {
    draw.id = Sample(draw, sampler, {});
    if (!draw.id) return;
    // The best of all tokens is the best of the legal ones, if it is legal.
    bool is_legal = EndsAnswer(spec, *draw.id) && format.Accepts();
    if (!EndsAnswer(spec, *draw.id) && !trie.text(*draw.id).empty()) {
      const std::optional<bool> leads = choice.Leads(*draw.id, draw.steps);
      if (!leads) return wait();
      is_legal = *leads;
    }
    if (is_legal) return;
    choice.best_is_illegal = true;
  }
  const std::span<uint64_t> legal = choice.Legal(draw.steps);
  if (legal.empty()) return wait();
  const auto set = [&](TokenId id, bool is_legal) { SetLegal(legal, id, is_legal); };
  if (spec.ignore_eos) {
    for (const TokenId id : trie.ends()) set(id, false);
  }
  for (const TokenId id : spec.stop_ids) set(id, format.Accepts());
  if (forbids) ForbidTokens(draw, legal);
  // A mask may have tokens after which the matcher would have too many places.
  for (; choice.num_tries < kMaxTries; ++choice.num_tries) {
    if (std::ranges::all_of(legal, [](uint64_t word) { return word == 0; })) break;
    draw.id = Sample(draw, sampler, legal);
    if (!draw.id) return;
    if (!IsLegal(legal, *draw.id)) break;  // biases forbid all that are
    if (EndsAnswer(spec, *draw.id)) return;
    const std::optional<bool> leads = choice.Leads(*draw.id, draw.steps);
    if (!leads) return wait();
    if (*leads) return;
    set(*draw.id, false);
  }
  draw.id.reset();
  draw.is_stuck = true;
  draw.hits_limit = !draw.is_drafted && format.HitsLimit(WalkSteps(kLimitSteps));
}

// Returns whether min_tokens or no_repeat_ngram_size may forbid a token here.
bool TokenChooser::ForbidsTokens(const Draw& draw) {
  const GenerateRequest& spec = draw.request->spec;
  return draw.sequence->tokens.size() < spec.prompt.size() + spec.min_tokens ||
         spec.no_repeat_ngram_size > 0;
}

// Takes what they forbid out of the legal tokens.
void TokenChooser::ForbidTokens(const Draw& draw, std::span<uint64_t> legal) const {
  const GenerateRequest& spec = draw.request->spec;
  const std::vector<TokenId>& tokens = draw.sequence->tokens;
  if (tokens.size() < spec.prompt.size() + spec.min_tokens) {
    for (const TokenId id : end_tokens_) SetLegal(legal, id, false);
    for (const TokenId id : spec.stop_ids) SetLegal(legal, id, false);
  }
  ForEachRepeat(tokens, spec.no_repeat_ngram_size, [&](TokenId id) { SetLegal(legal, id, false); });
}

// Returns nullopt if the request has no infill.
std::optional<InfillWords> TokenChooser::InfillWordsOf(const Request& request,
                                                       std::span<const uint64_t> legal) const {
  if (!request.spec.sampling.infill) return std::nullopt;
  InfillWords words{.text =
                        [trie = request.format.words](TokenId id) {
                          const std::string_view text = trie->text(id);
                          const bool is_special =
                              text.starts_with(kHiddenToken) || MarkOf(text).has_value();
                          return is_special ? std::string_view() : text;
                        },
                    .ends = [this, &request](TokenId id) { return EndsAnswer(request.spec, id); },
                    .end = std::nullopt};
  for (const TokenId id : end_tokens_) {
    if (request.spec.ignore_eos || (!legal.empty() && !IsLegal(legal, id))) continue;
    words.end = id;
    break;
  }
  return words;
}

bool TokenChooser::EndsAnswer(const GenerateRequest& spec, TokenId id) const {
  return (!spec.ignore_eos && std::binary_search(end_tokens_.begin(), end_tokens_.end(), id)) ||
         std::ranges::find(spec.stop_ids, id) != spec.stop_ids.end();
}

void TokenChooser::Zero() {
  for (size_t i = 0; i < num_used_; ++i) samplers_[i].Zero();
  for (std::vector<uint64_t>& legal : legal_) std::ranges::fill(legal, uint64_t{0});
  draws_.clear();
  num_used_ = 0;
}

}  // namespace kvasir
