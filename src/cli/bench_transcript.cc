#include "cli/bench_transcript.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/json_tree.h"
#include "base/result.h"
#include "base/sizes.h"
#include "cli/build_info.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "kvasir/engine_ranges.h"
#include "kvasir/transcript_bench.h"

namespace kvasir::cli {
namespace {

constexpr const char* kLineHelp = R"(a line is {"prompt": ids, "answer": ids})";

// Returns the ids of a list; absent: it is not a list of ids, or empty.
std::optional<std::vector<TokenId>> ReadIds(const JsonValue& value) {
  if (value.kind() == JsonValue::Kind::kIds) return {{value.ids().begin(), value.ids().end()}};
  if (!value.is_array() || value.size() == 0) return std::nullopt;
  std::vector<TokenId> ids;
  for (const JsonValue& item : value.items()) {
    if (item.kind() != JsonValue::Kind::kInteger || !std::in_range<TokenId>(item.integer())) {
      return std::nullopt;
    }
    ids.push_back(static_cast<TokenId>(item.integer()));
  }
  return ids;
}

// Reads one line. The error says what is wrong with it.
Result<Transcript> ReadTranscript(std::string_view text) {
  JsonTree tree;
  const std::optional<JsonValue> line = tree.Parse(text);
  if (!line) return Fail(Code::kInvalidArgument, "is not JSON");
  if (!line->is_object()) return Fail(Code::kInvalidArgument, "is not a JSON object");
  Transcript transcript;
  for (const auto& [name, ids] :
       {std::pair("prompt", &transcript.prompt), std::pair("answer", &transcript.answer)}) {
    const JsonValue* value = line->Find(name);
    if (value == nullptr) return Fail(Code::kInvalidArgument, "has no \"{}\"", name);
    std::optional<std::vector<TokenId>> read = ReadIds(*value);
    if (!read) {
      return Fail(Code::kInvalidArgument, "\"{}\" is not a list of ids, at least one", name);
    }
    *ids = std::move(*read);
  }
  return transcript;
}

Result<std::vector<Transcript>> ReadTranscripts(const std::string& path) {
  KV_ASSIGN(const std::string text, ReadFlagFile("transcript", path, "a file of JSON lines"));
  std::vector<Transcript> transcripts;
  uint32_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Result<Transcript> read = ReadTranscript(line);
    if (!read) {
      return Fail(Code::kInvalidArgument, "--transcript: {} line {}: {}; {}", path, number,
                  read.error().message, kLineHelp);
    }
    read->line = number;
    transcripts.push_back(std::move(*read));
  }
  if (transcripts.empty()) {
    return Fail(Code::kInvalidArgument, "--transcript: {} has no lines; {}", path, kLineHelp);
  }
  return transcripts;
}

// Returns the tokens that one step of the model gave, on average, with drafts.
double TokensAStep(const TranscriptSpeed& speed) {
  return static_cast<double>(speed.tokens) /
         static_cast<double>(speed.tokens - speed.drafts.all_accepted());
}

// Returns accepted tokens by their source, as receipts have them.
nlohmann::ordered_json SourcesOf(const DraftReceipt& drafts) {
  const auto of = [&](DraftSource source) { return drafts.accepted[static_cast<size_t>(source)]; };
  return {{"memory", of(DraftSource::kMemory)},
          {"prediction", of(DraftSource::kPrediction)},
          {"model", of(DraftSource::kModel)}};
}

void PrintTranscriptsJson(const TranscriptReport& report) {
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const TranscriptSpeed& speed : report.speeds) {
    results.push_back({{"test", speed.again ? "again" : "first"},
                       {"tokens", speed.tokens},
                       {"weights", report.card.dtype},
                       {"kv_format", report.kv_format},
                       {"off_tok_s", speed.off_tok_s},
                       {"on_tok_s", speed.on_tok_s},
                       {"speedup", speed.speedup},
                       {"speedup_min", speed.speedup_min},
                       {"speedup_max", speed.speedup_max},
                       {"tokens_a_step", TokensAStep(speed)},
                       {"drafted", speed.drafts.all_drafted()},
                       {"accepted", speed.drafts.all_accepted()},
                       {"sources", SourcesOf(speed.drafts)}});
  }
  const nlohmann::ordered_json json = {
      {"results", results},        {"transcripts", report.num_transcripts},
      {"at_once", report.at_once}, {"model", report.card.id},
      {"target", report.target},   {"commit", kCommit}};
  fmt::print("{}\n", json.dump(2));
}

void PrintTranscriptsTable(const TranscriptReport& report) {
  fmt::print("{}: weights {}, KV {}, target {}\n{}, {} at once\n\n", report.card.id,
             report.card.dtype, report.kv_format, report.target,
             CountText(report.num_transcripts, "transcript"), report.at_once);
  fmt::print("{:<6} {:>8} {:>12} {:>12} {:>9} {:>16} {:>14} {:>10}\n", "test", "tokens",
             "off tok/s", "on tok/s", "speedup", "min .. max", "tokens a step", "accepted");
  for (const TranscriptSpeed& speed : report.speeds) {
    const uint32_t drafted = speed.drafts.all_drafted();
    const double accepted =
        drafted == 0 ? 0 : static_cast<double>(speed.drafts.all_accepted()) / drafted;
    fmt::print(
        "{:<6} {:>8} {:>12.1f} {:>12.1f} {:>8.2f}x {:>7.2f} .. {:>5.2f} {:>14.2f} {:>9.0f}%\n",
        speed.again ? "again" : "first", speed.tokens, speed.off_tok_s, speed.on_tok_s,
        speed.speedup, speed.speedup_min, speed.speedup_max, TokensAStep(speed), 100 * accepted);
  }
}

}  // namespace

std::vector<Flag> TranscriptFlags() {
  return {{"transcript", "FILE",
           "instead: replay known answers with drafts and without; each line of the file is "
           "{\"prompt\": ids, \"answer\": ids} (bench/transcripts.py makes such files)"},
          {"at-once", "N", "with --transcript: answer N of them together (default 1)"},
          {"speculate", "auto|always",
           "with --transcript: how long drafts are: auto (default: as long as is faster), always"},
          {"draft-max", "N", "with --transcript: at most N tokens a draft, 0 to 32 (default 16)"},
          {"draft-model", "M", "with --transcript: a smaller model that drafts, as serve has it"},
          {"draft-shape", "S", "with --transcript: a draft model of random weights, as --shape"},
          {"draft-kv-memory", "SIZE",
           "with --transcript: the most the cache of the draft model may take (default 256MiB)"},
          {"draft-accept", "P",
           "with --transcript: a share P of the draft model's tokens is made right, and the others "
           "wrong"}};
}

Result<bool> ReplayTranscripts(const Args& args, const BenchOptions& options) {
  TranscriptBenchOptions transcripts{.engine = options.engine, .transcripts = {}};
  KV_ASSIGN(const uint64_t at_once,
            args.Uint("at-once", kParallelRange.least, kParallelRange.most, 1));
  KV_ASSIGN(const float accept, args.Float("draft-accept", {0, 1}, 0));
  if (args.Has("draft-accept")) {
    if (!options.engine.draft_model && !options.engine.draft_shape) {
      return Fail(Code::kInvalidArgument,
                  "--draft-accept: needs --draft-model M or --draft-shape S");
    }
    transcripts.draft_accept = accept;
  }
  const std::optional<std::string> path = args.Text("transcript");
  if (!path) return false;
  for (const char* other : {"p", "n", "d"}) {
    if (args.Has(other)) {
      return Fail(Code::kInvalidArgument, "give only one of --transcript and -{}", other);
    }
  }
  if (options.engine.speculate == Speculate::kOff) {
    return Fail(Code::kInvalidArgument,
                "--speculate: off leaves nothing to compare; give auto or always");
  }
  transcripts.at_once = static_cast<uint32_t>(at_once);
  if (args.Has("repeats")) transcripts.repeats = options.repeats;
  KV_ASSIGN(transcripts.transcripts, ReadTranscripts(*path));
  ExitOnInterrupt();
  Progress progress;
  transcripts.progress = [&](const std::string& what) { progress.Show(what); };
  transcripts.engine.progress = [&](const char* phase, double share) {
    progress.Show(fmt::format("{}: {:.0f}%", phase, share * 100), share);
  };
  transcripts.engine.warn = [&progress, warn = options.engine.warn](const std::string& text) {
    progress.Clear();
    warn(text);
  };
  KV_ASSIGN(const TranscriptReport report, RunTranscripts(transcripts));
  progress.Clear();
  if (args.Has("json")) {
    PrintTranscriptsJson(report);
  } else {
    PrintTranscriptsTable(report);
  }
  return true;
}

}  // namespace kvasir::cli
