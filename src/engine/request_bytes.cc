#include "kvasir/request_bytes.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace kvasir {
namespace {

// Sums of what values own. A type that is not listed does not compile, and neither does a struct
// with a member more than is named here.
struct Owned {
  // Returns 0 for what needs no destructor, and so owns nothing: numbers, enums, pointers to what
  // lives for ever.
  template <typename T>
    requires std::is_trivially_destructible_v<T>
  static uint64_t Bytes(const T&) {
    return 0;
  }
  static uint64_t Bytes(const std::string& text) { return text.capacity(); }
  template <typename T>
  static uint64_t Bytes(const std::optional<T>& value) {
    return value ? Bytes(*value) : 0;
  }
  template <typename T>
  static uint64_t Bytes(const std::vector<T>& list) {
    uint64_t bytes = list.capacity() * sizeof(T);
    if constexpr (!std::is_trivially_destructible_v<T>) {
      for (const T& one : list) bytes += Bytes(one);
    }
    return bytes;
  }
  template <typename Signature>
  static uint64_t Bytes(const std::function<Signature>&) {
    return 0;
  }
  static uint64_t Bytes(const std::shared_ptr<const CompiledFormat>&) { return 0; }

  template <typename... Fields>
  static uint64_t Sum(const Fields&... fields) {
    return (Bytes(fields) + ...);
  }

  static uint64_t Bytes(const AnswerFormat::Text& text) {
    const auto& [language, source, field] = text;
    return Sum(language, source, field);
  }
  static uint64_t Bytes(const AnswerFormat::Tool& tool) {
    const auto& [name, parameters, is_strict] = tool;
    return Sum(name, parameters, is_strict);
  }
  static uint64_t Bytes(const AnswerFormat& format) {
    const auto& [text, tools, must_call, parallel_calls, calls, think, begins_inside_thought,
                 max_thought_tokens] = format;
    return Sum(text, tools, must_call, parallel_calls, calls, think, begins_inside_thought,
               max_thought_tokens);
  }
  static uint64_t Bytes(const PromptSpans& choice) {
    const auto& [spans, seam, head] = choice;
    return Sum(spans, seam, head);
  }
  static uint64_t Bytes(const SamplingParams& sampling) {
    const auto& [temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty,
                 frequency_penalty, penalty_last_n, logit_bias, temperature_last, infill, seed] =
        sampling;
    return Sum(temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty,
               frequency_penalty, penalty_last_n, logit_bias, temperature_last, infill, seed);
  }
  static uint64_t Bytes(const GenerateRequest& request) {
    const auto& [tenant, cache_owner, cache_salt, source, prompt, message_ends, begins_with_system,
                 sampling, max_tokens, priority, timeout_ms, n, beams, min_tokens,
                 no_repeat_ngram_size, stop, stop_ids, format, compiled_format, ignore_eos,
                 echo_special, shown_special, logprobs, scores_prompt, embeds, reports_progress,
                 llama_quirks, adapters, adapter_digest, reuse, keeps, use_disk, use_remote,
                 retention, spans, draft_max, prediction, replayed, replayed_accept, chunk_tokens,
                 only_when_idle, identity_changed, caller_explains, on_logits, logits_from, ignored,
                 clock_in_prompt, cured, id, on_trace] = request;
    return Sum(tenant, cache_owner, cache_salt, source, prompt, message_ends, begins_with_system,
               sampling, max_tokens, priority, timeout_ms, n, beams, min_tokens,
               no_repeat_ngram_size, stop, stop_ids, format, compiled_format, ignore_eos,
               echo_special, shown_special, logprobs, scores_prompt, embeds, reports_progress,
               llama_quirks, adapters, adapter_digest, reuse, keeps, use_disk, use_remote,
               retention, spans, draft_max, prediction, replayed, replayed_accept, chunk_tokens,
               only_when_idle, identity_changed, caller_explains, on_logits, logits_from, ignored,
               clock_in_prompt, cured, id, on_trace);
  }
};

}  // namespace

uint64_t AllocatedBytes(const GenerateRequest& request) { return Owned::Bytes(request); }

}  // namespace kvasir
