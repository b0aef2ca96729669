// Measures what the cache costs a prefill that finds nothing in it.
#include <algorithm>
#include <memory>
#include <utility>

#include "base/random.h"
#include "base/result.h"
#include "kvasir/bench.h"
#include "kvasir/engine.h"

namespace kvasir {
namespace {

constexpr uint64_t kPromptSeed = 20240917;

}  // namespace

Result<CacheShare> MeasureCacheShare(const BenchOptions& options, uint32_t prompt_tokens) {
  if (prompt_tokens == 0 || options.repeats == 0) {
    const char* field = options.repeats == 0 ? "repeats" : "prompt_tokens";
    return FailField(Code::kInvalidArgument, field, "0; give at least 1");
  }
  if (options.progress) options.progress("measuring the cache's share of a prefill");
  KV_ASSIGN(const std::unique_ptr<Engine> engine, Engine::Load(options.engine));
  // One position is the answer's; a context of one token is refused by Submit.
  prompt_tokens = std::min(prompt_tokens, std::max(engine->card().ctx_size, 2u) - 1);
  Random random(kPromptSeed);
  const ModelCard& card = engine->card();
  const uint32_t vocab =
      card.decoder_start ? std::min(card.vocab_size, card.source_vocab_size) : card.vocab_size;
  EngineStats before;
  // The first prompt warms up and is not counted; each begins with another token: nothing to reuse.
  for (uint32_t prompt = 0; prompt <= options.repeats; ++prompt) {
    if (prompt == 1) before = engine->Stats();
    GenerateRequest request;
    request.max_tokens = 1;
    request.ignore_eos = true;
    for (uint32_t i = 0; i < prompt_tokens; ++i) {
      request.prompt.push_back(static_cast<TokenId>(random.Below(vocab)));
    }
    request.prompt[0] = static_cast<TokenId>(prompt);
    if (card.decoder_start) request.source = request.prompt;
    KV_TRY(Generate(*engine, std::move(request)));
  }
  const EngineStats after = engine->Stats();
  const double prompts = options.repeats;
  return CacheShare{prompt_tokens,
                    static_cast<double>(after.step_ns - before.step_ns) / 1e6 / prompts,
                    static_cast<double>(after.cache_ns - before.cache_ns) / 1e3 / prompts};
}

}  // namespace kvasir
