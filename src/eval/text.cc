#include "eval/text.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "base/result.h"
#include "eval/text_files.h"
#include "text/tokenizer.h"

namespace kvasir::eval {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kInstead = "--ids FILE --recall off";  // of text, to a model without it
// 2026-01-01: the current time for templates that write the date.
constexpr int64_t kNowUnixS = 1767225600;

// Cuts `ids` into windows, each after `front`; drops a rest that is too short.
std::vector<std::vector<TokenId>> CutWindows(std::span<const TokenId> ids,
                                             std::span<const TokenId> front,
                                             uint32_t window_tokens) {
  std::vector<std::vector<TokenId>> windows;
  while (!ids.empty()) {
    const auto taken = ids.first(std::min(window_tokens - front.size(), ids.size()));
    ids = ids.subspan(taken.size());
    std::vector<TokenId> window(front.begin(), front.end());
    window.insert(window.end(), taken.begin(), taken.end());
    if (window.size() >= kMinWindowTokens) windows.push_back(std::move(window));
  }
  return windows;
}

// Returns the problem with the object of one line; "" if it is fine.
std::string ReadProbe(const Json& json, Probe* probe) {
  if (!json.is_object()) return "is not a JSON object";
  const auto text = [&json](const char* key, std::string* out) {
    const auto found = json.find(key);
    if (found == json.end()) return true;
    if (!found->is_string()) return false;
    *out = found->get<std::string>();
    return true;
  };
  if (!text("kind", &probe->kind)) return "'kind' is not a string";
  if (!text("answer", &probe->answer)) return "'answer' is not a string";
  if (!text("expect", &probe->expect)) return "'expect' is not a string";
  if (probe->expect.empty()) return "'expect' is missing: the words of a right answer";
  if (probe->kind.empty()) probe->kind = "probe";
  const auto messages = json.find("messages");
  if (messages == json.end() || !messages->is_array() || messages->empty()) {
    return "'messages' is missing: [{\"role\": ..., \"content\": ...}, ...]";
  }
  for (const Json& message : *messages) {
    const bool good = message.is_object() && message.contains("role") &&
                      message["role"].is_string() && message.contains("content") &&
                      message["content"].is_string();
    if (!good) {
      return fmt::format("messages[{}] needs 'role' and 'content', both strings",
                         probe->messages.size());
    }
    probe->messages.push_back({message["role"], message["content"]});
  }
  return "";
}

// Returns an order of 0 ... n - 1 in which every beginning is spread over the whole range: steps of
// the golden section, made coprime to n.
std::vector<size_t> SpreadOrder(size_t n) {
  size_t step = std::max<size_t>(1, static_cast<size_t>(static_cast<double>(n) * 0.618));
  while (std::gcd(step, n) != 1) ++step;
  std::vector<size_t> order(n);
  for (size_t i = 0; i < n; ++i) order[i] = i * step % n;
  return order;
}

}  // namespace

uint64_t EvalText::scored_tokens() const {
  uint64_t tokens = 0;
  for (const auto& window : windows) tokens += window.size() - 1 - first_scored;
  return tokens;
}

Result<std::vector<Probe>> ReadProbes(const std::string& path) {
  KV_ASSIGN(const std::string bytes, ReadWholeFile("--recall", path));
  std::vector<Probe> probes;
  size_t line_number = 0;
  for (size_t begin = 0; begin < bytes.size();) {
    const size_t end = std::min(bytes.find('\n', begin), bytes.size());
    const std::string_view line(bytes.data() + begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Probe probe;
    probe.where = fmt::format("{}:{}", path, line_number);
    const Json json = Json::parse(line, nullptr, false);
    const std::string wrong = json.is_discarded() ? "is not valid JSON (each line is an object)"
                                                  : ReadProbe(json, &probe);
    if (!wrong.empty()) {
      return Fail(Code::kInvalidArgument, "--recall: {}: {}", probe.where, wrong);
    }
    probes.push_back(std::move(probe));
  }
  if (probes.empty()) {
    return Fail(Code::kInvalidArgument,
                "--recall: '{}' has no probes; its lines are {{\"messages\": [...], \"expect\": "
                "...}}",
                path);
  }
  return probes;
}

Result<std::vector<TokenId>> PromptOf(const Engine& engine, const Probe& probe) {
  KV_TRY(TokenizerOf(engine, kInstead));
  if (engine.chat_template() == nullptr) {
    return FailField(Code::kUnsupported, "model",
                     "{} has no chat template, so the conversations of {} cannot be read; give "
                     "--text FILE --recall off",
                     engine.card().path, probe.where);
  }
  auto prompt = EncodeChat(engine, probe.messages, kNowUnixS);
  if (prompt) return std::move(prompt->ids);
  return Fail(prompt.error().code, "{}: {}", probe.where, prompt.error().message);
}

Result<EvalText> TextOfFile(const Engine& engine, const std::string& path,
                            const TextLimits& limits) {
  KV_ASSIGN(const Tokenizer* tokenizer, TokenizerOf(engine, kInstead));
  KV_ASSIGN(const std::string text, ReadTextStart(path, limits.tokens));
  KV_ASSIGN(std::vector<TokenId> ids,
            tokenizer->Encode(text, {.add_special = false, .parse_special = false}));
  ids.resize(std::min<uint64_t>(ids.size(), limits.tokens));
  std::vector<TokenId> front;  // of each window
  KV_ASSIGN(const std::vector<TokenId> added, tokenizer->Encode(""));
  if (!added.empty() && tokenizer->bos() == added.front()) front = {added.front()};
  EvalText out;
  out.source = fs::path(path).filename().string();
  out.windows = CutWindows(ids, front, limits.window_tokens);
  if (out.windows.empty()) {
    return Fail(Code::kInvalidArgument,
                "--text: '{}' has {} tokens; give at least {}, better a few thousand", path,
                ids.size(), kMinWindowTokens);
  }
  return out;
}

Result<EvalText> TextOfIds(const Engine& engine, const std::string& path,
                           const TextLimits& limits) {
  KV_ASSIGN(const std::string text, ReadWholeFile("--ids", path));
  KV_ASSIGN(std::vector<TokenId> ids,
            ReadIds(fmt::format("'{}'", path), text, engine.card().vocab_size));
  ids.resize(std::min<uint64_t>(ids.size(), limits.tokens));
  EvalText out;
  out.source = fs::path(path).filename().string();
  out.windows = CutWindows(ids, {}, limits.window_tokens);
  if (!out.windows.empty()) return out;
  return Fail(Code::kInvalidArgument,
              "--ids: '{}' has {} ids; give at least {}, better a few thousand", path, ids.size(),
              kMinWindowTokens);
}

Result<EvalText> TextOfProbes(const Engine& engine, const std::vector<Probe>& probes,
                              const TextLimits& limits) {
  EvalText out;
  uint64_t left = limits.tokens;
  for (const size_t i : SpreadOrder(probes.size())) {
    if (left < kMinWindowTokens) break;
    KV_ASSIGN(std::vector<TokenId> window, PromptOf(engine, probes[i]));
    KV_ASSIGN(const std::vector<TokenId> answer,
              engine.tokenizer()->Encode(probes[i].answer,
                                         {.add_special = false, .parse_special = false}));
    window.insert(window.end(), answer.begin(), answer.end());
    window.resize(std::min({uint64_t{window.size()}, uint64_t{limits.window_tokens}, left}));
    if (window.size() < kMinWindowTokens) continue;
    left -= window.size();
    out.windows.push_back(std::move(window));
  }
  if (out.windows.empty()) {
    return Fail(Code::kInvalidArgument,
                "--text: the conversations of {} have fewer than {} tokens each; give --text FILE",
                probes.front().where, kMinWindowTokens);
  }
  out.source = fmt::format("{} conversations of the evaluation set", out.windows.size());
  return out;
}

}  // namespace kvasir::eval
