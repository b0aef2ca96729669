#include "api/request_limits.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "kvasir/adapters.h"
#include "kvasir/drafts.h"
#include "kvasir/prompt_spans.h"
#include "kvasir/retention.h"
#include "kvasir/sampling_params.h"
#include "source_paths.h"

namespace kvasir {
namespace {

// Returns 1,024 for 1024.
std::string WithCommas(uint64_t number) {
  std::string text = std::to_string(number);
  for (size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

// Returns the line of a file that begins so; "" if none does.
std::string LineOf(const std::string& path, const std::string& begin) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(begin)) return line;
  }
  return "";
}

TEST(RequestLimits, AreThoseOfTheDocs) {
  struct Row {
    std::string file, begin, begin_of_number;
    uint64_t limit;
    std::string after;
  };
  constexpr auto kScale = static_cast<uint64_t>(kMaxAdapterScale);
  const std::vector<Row> rows = {
      {"api.md", "`--alias '*'`", "of at most ", kMaxAnyNameBytes, " bytes"},
      {"api.md", "| `prompt` (completions)", "prompts x `n` at most ", kMaxAnswers, " |"},
      {"api.md", "| `logit_bias`", "at most ", kMaxBiases, " tokens |"},
      {"api.md", "| `stop`", "up to ", kMaxStops, ", "},
      {"api.md", "| `stop`", "at most ", kMaxStopBytes, " bytes each"},
      {"api.md", "| `stop`", "up to ", kMaxStopIds, " ids"},
      {"api.md", "| `n`,", "(8), ", kMaxChoices, " at most"},
      {"api.md", "| `n_cmpl`", "as `n`: ", kMaxChoices, " at most"},
      {"api.md", "| `logprobs`, `top_logprobs` (chat)", "0 to ", kMaxTopLogprobs, " |"},
      {"api.md", "| `logprobs` (completions)", "0 to ", kMaxTopLogprobs, " |"},
      {"api.md", "| `n_probs`", "0 to ", kMaxTopLogprobs, " (0)"},
      {"api.md", "| `n_indent`", "to ", kMaxIndent, ": "},
      {"api.md", "| `timeout_ms`", "1 to ", kMaxTimeoutMs, " ("},
      {"api.md", "| `cache_salt`", "1 to ", kMaxSaltBytes, " bytes"},
      {"api.md", "| `response_fields`", "at most ", kMaxResponseFields, ";"},
      {"api.md", "| `samplers`", "at most ", kMaxListedSamplers, ", in order"},
      {"embeddings.md", "| `input`", "up to ", kMaxInputs, " of those"},
      {"spans.md", "| `cache.seam`", "| 0 to ", kMaxSeamTokens, " |"},
      {"spans.md", "encoder; `--cache none`", "more than ", kMaxSpans, " spans"},
      {"adapters.md", "| `--lora-scaled", "-100 to ", kScale, " |"},
      {"adapters.md", "  0, and `[]`", "a scale beyond ", kScale, ""},
      {"translation.md", "| `--beams`", "to ", kMaxBeams, ", at most"},
      {"translation.md", "| `--no-repeat-ngram-size`", "at most ", kMaxNgram, ")"},
      {"speculation.md", "| `--draft-max`", "0 to ", kMaxDraft, " ("},
      {"retention.md", "pass the context too,", "at most ", kMaxRetainedTokens, " tokens"},
      {"sessions.md", "- `messages` are those", "up to ", kMaxSegments, " `segments`"},
      {"sessions.md", "| `origin`", "1 to ", kMaxOriginBytes, " bytes"},
      {"sessions.md", "| `metadata`", "up to ", kMaxMetadata, " texts"},
      {"sessions.md", "| `metadata`", "at most ", kMaxMetadataValue, " bytes"},
      {"sessions.md", "| `metadata`", "keys of at most ", kMaxMetadataKey, ","},
  };
  for (const Row& row : rows) {
    const std::string line = LineOf(KVASIR_SOURCE_DIR "/docs/" + row.file, row.begin);
    const std::string wanted = row.begin_of_number + WithCommas(row.limit) + row.after;
    EXPECT_NE(line.find(wanted), std::string::npos)
        << "docs/" << row.file << ": the line that begins with " << row.begin << " is \"" << line
        << "\"; it should say \"" << wanted << "\"";
  }
}

}  // namespace
}  // namespace kvasir
