#include "cli/adapter_flags.h"

#include <charconv>
#include <cmath>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kvasir/engine_ranges.h"

namespace kvasir::cli {
namespace {

// Splits the values of a flag at commas. kInvalidArgument: a part is empty.
Result<std::vector<std::string>> AdapterParts(const Args& args, const std::string& flag) {
  std::vector<std::string> parts;
  for (const std::string& list : args.List(flag)) {
    for (size_t begin = 0; begin <= list.size();) {
      const size_t end = std::min(list.find(',', begin), list.size());
      parts.push_back(list.substr(begin, end - begin));
      if (parts.back().empty()) {
        return Fail(Code::kInvalidArgument,
                    "--{}: '{}' names nothing; give the folder or GGUF file of an adapter", flag,
                    list);
      }
      begin = end + 1;
    }
  }
  return parts;
}

// "NAME=PATH", or a path. A name has no slash, so paths with a '=' can be given as ./a=b.
Result<AdapterSource> NamedSource(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == text.npos || text.find('/') < equals) return AdapterSource{.path = text};
  AdapterSource source{.path = text.substr(equals + 1), .name = text.substr(0, equals)};
  if (!source.path.empty() && !source.name->empty()) return source;
  return Fail(Code::kInvalidArgument, "--lora: '{}' lacks {}; give NAME=PATH, or a path", text,
              source.path.empty() ? "a path after the '='" : "a name before the '='");
}

// "PATH:SCALE".
Result<AdapterSource> ScaledSource(const std::string& text) {
  const size_t colon = text.rfind(':');
  AdapterSource source{.path = text.substr(0, colon)};
  const char* const begin = text.data() + (colon == text.npos ? text.size() : colon + 1);
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(begin, end, source.scale);
  const bool is_number = error == std::errc() && at == end && std::isfinite(source.scale);
  if (is_number && !source.path.empty() && std::abs(source.scale) <= kMaxAdapterScale) {
    const size_t equals = source.path.find('=');
    if (equals == source.path.npos || source.path.find('/') < equals) return source;
    return Fail(Code::kInvalidArgument,
                "--lora-scaled: '{}' has a name; give --lora {}, and the scale with POST "
                "/lora-adapters, or ./PATH where the path has the '='",
                text, source.path);
  }
  return Fail(Code::kInvalidArgument,
              "--lora-scaled: '{}' is not valid; give PATH:SCALE, with a scale from -{} to {}",
              text, kMaxAdapterScale, kMaxAdapterScale);
}

}  // namespace

std::vector<Flag> AdapterFlags() {
  return {{"lora", "[NAME=]PATH",
           "a LoRA adapter: a PEFT folder or a GGUF file; may be given several times, or a list "
           "with commas",
           FlagKind::kList},
          {"lora-scaled", "PATH:SCALE", "the same, applied with this scale (-100 to 100)",
           FlagKind::kList},
          {"lora-memory", "SIZE",
           "memory limit of adapters (default: what those of the start take; with --lora-dir "
           "256MiB)"},
          {"max-lora-rank", "N", "the largest rank of an adapter (default 64)"},
          {"max-loras", "N", "adapters that are loaded at once (default 8)"}};
}

Flag LoraDirFlag() {
  return {"lora-dir", "DIR",
          "POST /v1/load_lora_adapter may load adapters that are in this folder"};
}

std::vector<Flag> ServeAdapterFlags() {
  return {{"lora-init-without-apply", "",
           "requests that say nothing of adapters get none, until POST /lora-adapters",
           FlagKind::kSwitch},
          LoraDirFlag()};
}

Status ReadAdapterFlags(const Args& args, EngineOptions* options) {
  AdapterOptions& adapters = options->adapters;
  KV_ASSIGN(const std::vector<std::string> named, AdapterParts(args, "lora"));
  for (const std::string& text : named) {
    KV_ASSIGN(AdapterSource source, NamedSource(text));
    adapters.load.push_back(std::move(source));
  }
  KV_ASSIGN(const std::vector<std::string> scaled, AdapterParts(args, "lora-scaled"));
  for (const std::string& text : scaled) {
    KV_ASSIGN(AdapterSource source, ScaledSource(text));
    adapters.load.push_back(std::move(source));
  }
  if (args.Has("lora-memory")) {
    KV_ASSIGN(adapters.memory_bytes, args.Bytes("lora-memory", 0));
  }
  KV_ASSIGN(const uint64_t rank, args.Uint("max-lora-rank", kMaxLoraRankRange.least,
                                           kMaxLoraRankRange.most, adapters.max_rank));
  KV_ASSIGN(const uint64_t loaded,
            args.Uint("max-loras", kMaxLorasRange.least, kMaxLorasRange.most, adapters.max_loaded));
  adapters.max_rank = static_cast<uint32_t>(rank);
  adapters.max_loaded = static_cast<uint32_t>(loaded);
  return {};
}

void ReadServeAdapterFlags(const Args& args, EngineOptions* options) {
  options->adapters.loads_later = args.Has("lora-dir");
  for (AdapterSource& source : options->adapters.load) {
    if (source.name || args.Has("lora-init-without-apply")) source.scale = 0;
  }
}

}  // namespace kvasir::cli
