// Sources of an encoder-decoder model, and the answers over which its KV formats are compared.
#include <filesystem>
#include <utility>

#include "base/result.h"
#include "eval/text.h"
#include "eval/text_files.h"

namespace kvasir::eval {
namespace {

constexpr uint32_t kAnswerTokens = 256;

// Calls `read` with each line of `text` that is not empty, and its place for messages, until the
// sources have max_tokens tokens.
template <typename Read>
Result<Sources> ReadLines(const std::string& flag, const std::string& path, std::string_view text,
                          uint64_t max_tokens, Read read) {
  Sources sources;
  uint64_t tokens = 0;
  for (size_t line = 1; !text.empty() && tokens < max_tokens; ++line) {
    std::string_view words = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(words.size() + 1, text.size()));
    if (words.ends_with('\r')) words.remove_suffix(1);
    if (words.find_first_not_of(" \t") == std::string_view::npos) continue;
    KV_ASSIGN(std::vector<TokenId> source, read(words, fmt::format("'{}' line {}", path, line)));
    tokens += source.size();
    sources.push_back(std::move(source));
  }
  if (!sources.empty()) return sources;
  return Fail(Code::kInvalidArgument, "{}: '{}' has no lines; each is a source", flag, path);
}

Status CheckLength(const std::string& flag, const std::string& place, size_t tokens,
                   uint32_t most) {
  if (tokens <= most) return {};
  return Fail(Code::kInvalidArgument, "{}: {} has {} tokens; the encoder reads at most {} at once",
              flag, place, tokens, most);
}

}  // namespace

Result<Sources> SourcesOfFile(const Engine& engine, const std::string& path,
                              const SourceFrame& frame, const TextLimits& limits) {
  KV_ASSIGN(const std::string text, ReadTextStart(path, limits.tokens));
  return ReadLines(
      "--text", path, text, limits.tokens,
      [&](std::string_view words, const std::string& line) -> Result<std::vector<TokenId>> {
        KV_ASSIGN(std::vector<TokenId> source,
                  EncodeSource(*engine.tokenizer(), words, frame, SIZE_MAX));
        KV_TRY(CheckLength("--text", line, source.size(), limits.window_tokens));
        return source;
      });
}

Result<Sources> SourcesOfIds(const Engine& engine, const std::string& path,
                             const TextLimits& limits) {
  KV_ASSIGN(const std::string text, ReadWholeFile("--ids", path));
  return ReadLines(
      "--ids", path, text, limits.tokens,
      [&](std::string_view words, const std::string& line) -> Result<std::vector<TokenId>> {
        KV_ASSIGN(std::vector<TokenId> source,
                  ReadIds(line, words, engine.card().source_vocab_size));
        KV_TRY(CheckLength("--ids", line, source.size(), limits.window_tokens));
        return source;
      });
}

Result<EvalText> TextOfSources(Engine& engine, const std::string& path, Sources sources,
                               const std::vector<TokenId>& target) {
  EvalText text;
  text.source = std::filesystem::path(path).filename().string();
  text.first_scored = static_cast<uint32_t>(target.size());
  for (std::vector<TokenId>& source : sources) {
    GenerateRequest request;
    request.source = source;
    request.prompt = {*engine.card().decoder_start};
    request.prompt.insert(request.prompt.end(), target.begin(), target.end());
    request.sampling.temperature = 0;
    request.max_tokens = kAnswerTokens;
    request.reuse = Reuse::kNothing;
    std::vector<TokenId> window = request.prompt;
    KV_ASSIGN(const Generation answer, Generate(engine, std::move(request)));
    window.insert(window.end(), answer.tokens.begin(), answer.tokens.end());
    if (answer.tokens.empty()) continue;
    text.windows.push_back(std::move(window));
    text.sources.push_back(std::move(source));
  }
  if (!text.windows.empty()) return text;
  return Fail(Code::kInvalidArgument,
              "--ctx-size: {} tokens leave no room for an answer after the language",
              engine.card().ctx_size);
}

}  // namespace kvasir::eval
