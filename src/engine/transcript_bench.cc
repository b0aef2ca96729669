#include "kvasir/transcript_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "kvasir/engine.h"

namespace kvasir {
namespace {

Status CheckTranscripts(const TranscriptBenchOptions& options, const ModelCard& card) {
  const auto refuse = [](const Transcript& of, const std::string& why) {
    return FailField(Code::kInvalidArgument, "transcript", "line {}: {}", of.line, why);
  };
  // A draft model drafts nothing for a text that it cannot read.
  const bool draft_has_fewer = card.draft_vocab_size > 0 && card.draft_vocab_size < card.vocab_size;
  const uint32_t vocab_size = draft_has_fewer ? card.draft_vocab_size : card.vocab_size;
  for (const Transcript& of : options.transcripts) {
    for (const auto& [name, ids] : {std::pair("prompt", std::span<const TokenId>(of.prompt)),
                                    std::pair("answer", std::span<const TokenId>(of.answer))}) {
      if (ids.empty()) return refuse(of, fmt::format("\"{}\" is empty", name));
      for (const TokenId id : ids) {
        if (id >= 0 && static_cast<uint32_t>(id) < vocab_size) continue;
        return refuse(of,
                      fmt::format("\"{}\" has the id {}, which is outside the {}'s "
                                  "vocabulary [0, {})",
                                  name, id, draft_has_fewer ? "draft model" : "model", vocab_size));
      }
    }
    const size_t tokens = of.prompt.size() + of.answer.size();
    if (tokens > card.ctx_size) {
      return refuse(of, fmt::format("prompt and answer have {} tokens, more than the model's "
                                    "context of {}",
                                    tokens, card.ctx_size));
    }
  }
  return {};
}

// Submits requests together and waits for all of them.
struct Answered {
  uint64_t ns = 0;
  DraftReceipt drafts;
};
Result<Answered> AnswerAll(Engine& engine, std::vector<GenerateRequest> requests) {
  Answered answered;
  std::optional<Error> error;
  const size_t count = requests.size();
  size_t num_ended = 0;
  const auto done = std::make_shared<std::promise<void>>();  // outlives the sink's last call
  const uint64_t start_ns = MonotonicNs();
  KV_TRY(engine.SubmitAll(std::move(requests), [&, done](size_t, const Event& event) {
    if (event.error) error = event.error;
    if (!event.last) return;
    answered.drafts.Add(event.receipt.draft);
    if (++num_ended < count) return;
    answered.ns = MonotonicNs() - start_ns;
    done->set_value();
  }));
  done->get_future().wait();
  if (error) return tl::unexpected(*error);
  return answered;
}

// The answers of a group, each with a separate cache, which is erased in the end.
class GroupReplay {
 public:
  GroupReplay(Engine& engine, std::span<const Transcript> group, bool drafts,
              std::optional<double> accept)
      : engine_(engine), group_(group), drafts_(drafts), accept_(accept) {}
  ~GroupReplay() {
    for (size_t i = 0; i < group_.size(); ++i) engine_.Erase(OwnerOf(i));
  }
  GroupReplay(const GroupReplay&) = delete;
  GroupReplay& operator=(const GroupReplay&) = delete;

  // Reads the prompts.
  Status Begin() {
    return Run(false).map([](const Answered&) {});
  }
  Result<Answered> Answer() { return Run(true); }

 private:
  std::string OwnerOf(size_t i) const { return fmt::format("{} {}", drafts_ ? "on" : "off", i); }
  Result<Answered> Run(bool answers) {
    std::vector<GenerateRequest> requests(group_.size());
    for (size_t i = 0; i < group_.size(); ++i) {
      GenerateRequest& request = requests[i];
      request.cache_owner = OwnerOf(i);
      request.prompt = group_[i].prompt;
      request.max_tokens = 0;
      request.ignore_eos = true;
      if (!drafts_) request.draft_max = 0;
      if (!answers) continue;
      request.max_tokens = static_cast<uint32_t>(group_[i].answer.size());
      request.replayed = group_[i].answer;
      request.replayed_accept = accept_;
    }
    return AnswerAll(engine_, std::move(requests));
  }

  Engine& engine_;
  const std::span<const Transcript> group_;
  const bool drafts_;
  const std::optional<double> accept_;
};

// Times of one kind of pass: the first one, or the one that asks the same again.
struct PassTimes {
  uint64_t off_ns = 0, on_ns = 0, tokens = 0;
  std::vector<double> speedups;
  DraftReceipt drafts;

  void Add(uint64_t more_tokens, const Answered& off, const Answered& on) {
    tokens += more_tokens;
    off_ns += off.ns;
    on_ns += on.ns;
    speedups.push_back(static_cast<double>(off.ns) / static_cast<double>(on.ns));
    drafts.Add(on.drafts);
  }
  TranscriptSpeed Report(bool again) {
    std::ranges::sort(speedups);
    const auto tok_s = [&](uint64_t ns) {
      return static_cast<double>(tokens) * 1e9 / static_cast<double>(ns);
    };
    return {.again = again,
            .tokens = tokens,
            .off_tok_s = tok_s(off_ns),
            .on_tok_s = tok_s(on_ns),
            .speedup = speedups[speedups.size() / 2],
            .speedup_min = speedups.front(),
            .speedup_max = speedups.back(),
            .drafts = drafts};
  }
};

Status ReplayGroup(Engine& engine, std::span<const Transcript> group, std::optional<double> accept,
                   uint64_t number, PassTimes (&passes)[2]) {
  uint64_t tokens = 0;
  for (const Transcript& of : group) tokens += of.answer.size();
  GroupReplay off(engine, group, false, accept);
  GroupReplay on(engine, group, true, accept);
  KV_TRY(off.Begin());
  KV_TRY(on.Begin());
  for (PassTimes& pass : passes) {
    // The order changes from group to group.
    GroupReplay &first = number % 2 == 0 ? off : on, &second = number % 2 == 0 ? on : off;
    KV_ASSIGN(Answered of_first, first.Answer());
    KV_ASSIGN(Answered of_second, second.Answer());
    if (number % 2 != 0) std::swap(of_first, of_second);
    pass.Add(tokens, of_first, of_second);
  }
  return {};
}

// Wakes the engine's threads and its memory up, without being measured.
Status WarmUp(Engine& engine, Transcript of) {
  constexpr size_t kWarmTokens = 16;
  of.answer.resize(std::min(of.answer.size(), kWarmTokens));
  GroupReplay warm(engine, std::span(&of, 1), true, std::nullopt);
  KV_TRY(warm.Begin());
  return warm.Answer().map([](const Answered&) {});
}

}  // namespace

Result<TranscriptReport> RunTranscripts(const TranscriptBenchOptions& options) {
  if (options.transcripts.empty() || options.at_once == 0 || options.repeats == 0) {
    return FailField(Code::kInvalidArgument, "transcript", "nothing to replay");
  }
  EngineOptions engine_options = options.engine;
  engine_options.parallel = options.at_once;
  KV_ASSIGN(const std::unique_ptr<Engine> engine, Engine::Load(engine_options));
  KV_TRY(CheckTranscripts(options, engine->card()));
  KV_TRY(WarmUp(*engine, options.transcripts.front()));
  PassTimes passes[2];
  uint64_t number = 0;
  const std::span<const Transcript> all = options.transcripts;
  for (uint32_t repeat = 0; repeat < options.repeats; ++repeat) {
    for (size_t begin = 0; begin < all.size(); begin += options.at_once) {
      if (options.progress) {
        options.progress(fmt::format("transcript {} of {}, round {} of {}", begin + 1, all.size(),
                                     repeat + 1, options.repeats));
      }
      const size_t count = std::min<size_t>(options.at_once, all.size() - begin);
      KV_TRY(
          ReplayGroup(*engine, all.subspan(begin, count), options.draft_accept, number++, passes));
    }
  }
  return TranscriptReport{.speeds = {passes[0].Report(false), passes[1].Report(true)},
                          .num_transcripts = static_cast<uint32_t>(all.size()),
                          .at_once = options.at_once,
                          .card = engine->card(),
                          .kv_format = engine->plan().kv_format,
                          .target = engine->target()};
}

}  // namespace kvasir
