#include "cli/eval_options.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "base/result.h"
#include "cli/sampling_flags.h"
#include "eval/text.h"

namespace kvasir::cli {

using namespace eval;
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kDefaultTokens = 16384;
constexpr uint64_t kMaxEvalTokens = uint64_t{1} << 22;  // each takes 50 bytes of figures per format
// By Pinsker's inequality the probability of any set of next tokens then changes by no more than
// sqrt(0.005 / 2) = 5 percentage points on average.
constexpr float kDefaultMaxKl = 0.005F;

// Splits "int8,k=int8,v=f16,int4" into three: an item that begins with k= or v= includes its other
// half.
std::vector<std::string> SplitFormats(const std::string& text) {
  std::vector<std::string> formats;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    begin = end + 1;
    const auto half = [](const std::string& name, char of) {
      return name.size() > 1 && name[0] == of && name[1] == '=' &&
             name.find(',') == std::string::npos;
    };
    const bool joins = !formats.empty() && ((half(formats.back(), 'k') && half(part, 'v')) ||
                                            (half(formats.back(), 'v') && half(part, 'k')));
    if (joins) {
      formats.back() += "," + part;
    } else {
      formats.push_back(part);
    }
  }
  return formats;
}

// Checks before hours of work whether the file can be written at the end.
Status CheckSvgPath(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_regular_file(path, error)) {
    return Fail(Code::kInvalidArgument, "--svg: '{}' is not a regular file; give another name",
                path);
  }
  const fs::path folder = fs::path(path).parent_path();
  const bool good =
      !path.empty() && access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0;
  if (good) return {};
  return Fail(Code::kInvalidArgument, "--svg: cannot write '{}'; give a file in a writable folder",
              path);
}

Result<std::vector<KvChoice>> ReadChoices(const Args& args, const EngineOptions& engine) {
  if (args.Has("formats") && args.Has("kv-format")) {
    return Fail(Code::kInvalidArgument, "give only one of --formats and --kv-format");
  }
  std::vector<std::string> names = KvFormatList();
  std::erase(names, "f32");  // what the others are compared with
  if (args.Has("kv-format")) names = {engine.kv_format};
  if (const auto text = args.Text("formats")) names = SplitFormats(*text);
  std::vector<KvChoice> choices;
  for (const std::string& name : names) {
    const KvChoice choice{name, engine.kv_skip_layers};
    const bool twice = std::ranges::find(choices, name, &KvChoice::format) != choices.end();
    if (!twice) choices.push_back(choice);
  }
  return choices;
}

// Reads --source and --target (both or neither, beside a text) and --target-id (beside ids).
Status ReadLanguages(const Args& args, EvalOptions* options) {
  options->source = args.Text("source");
  options->target = args.Text("target");
  if (options->source.has_value() != options->target.has_value()) {
    return Fail(Code::kInvalidArgument,
                "--{} is missing; give the languages as --source en "
                "--target fr",
                options->source ? "target" : "source");
  }
  if (options->source && !options->text) {
    return Fail(Code::kInvalidArgument, "--source: is the language of --text FILE; give that too");
  }
  if (!args.Has("target-id")) return {};
  if (!options->ids) {
    return Fail(Code::kInvalidArgument, "--target-id: is for --ids FILE; give that too");
  }
  KV_ASSIGN(const std::vector<TokenId> ids, ParseIds(*args.Text("target-id"), "target-id"));
  if (ids.size() != 1) {
    return Fail(Code::kInvalidArgument, "--target-id: {} ids; give one", ids.size());
  }
  options->target_id = ids[0];
  return {};
}

}  // namespace

Result<EvalOptions> ReadEvalOptions(const Args& args, const EngineOptions& engine) {
  EvalOptions options;
  KV_ASSIGN(options.choices, ReadChoices(args, engine));
  options.text = args.Text("text");
  options.ids = args.Text("ids");
  if (options.text && options.ids) {
    return Fail(Code::kInvalidArgument, "give only one of --text and --ids");
  }
  KV_TRY(ReadLanguages(args, &options));
  options.recall = args.Text("recall");
  KV_ASSIGN(options.tokens, args.Uint("tokens", kMinWindowTokens, kMaxEvalTokens, kDefaultTokens));
  static constexpr std::string_view kLayers[] = {"auto", "on", "off"};
  KV_ASSIGN(const std::string layers, args.OneOf("layers", kLayers, "auto"));
  if (layers != "auto") options.layers = layers == "on";
  if (engine.ctx_size && *engine.ctx_size < kMinWindowTokens) {
    return Fail(Code::kInvalidArgument,
                "--ctx-size: windows of {} tokens are too short to measure; give {} or more",
                *engine.ctx_size, kMinWindowTokens);
  }
  if (!engine.kv_skip_layers.empty()) {
    if (options.layers == true) {
      return Fail(Code::kInvalidArgument,
                  "--layers: cannot be combined with --kv-skip-layers, which measures that list; "
                  "leave one out");
    }
    options.layers = false;
  }
  KV_ASSIGN(options.max_kl, args.Float("max-kl", {0, 100}, kDefaultMaxKl));
  options.svg = args.Text("svg");
  if (options.svg) KV_TRY(CheckSvgPath(*options.svg));
  return options;
}

}  // namespace kvasir::cli
