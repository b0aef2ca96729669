#include "cli/flag_aliases.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/nearest.h"
#include "base/result.h"

namespace kvasir::cli {
namespace {

// Names are separated by spaces: llama-server's, then vLLM's.
struct Alias {
  std::string_view names;
  std::string_view flag;
  std::string_view otherwise = {};  // llama-server's word for "as without the flag"
};

constexpr Alias kAliases[] = {
    {"-m", "model"},
    {"-hf -hfr", "hf-repo"},
    {"-md --model-draft --spec-draft-model", "draft-model"},
    {"-hfd -hfrd --hf-repo-draft --spec-draft-hf", "draft-hf-repo"},
    {"-c --ctx-size --max-model-len", "ctx-size", "0"},
    {"-np --parallel --max-num-seqs", "parallel", "-1"},
    {"-t --threads", "threads", "-1"},
    {"-a --served-model-name", "alias"},
    {"-p", "prompt"},
    {"-n --predict --n-predict", "max-tokens", "-1"},
    {"-s --seed", "seed", "-1"},
    {"--temp", "temperature"},
    {"--n", "hypotheses"},
    {"--repeat-penalty", "repetition-penalty"},
    {"--no-ui --no-webui", "no-page"},
    {"-rea", "reasoning"},
    {"-v --log-verbose", "verbose"},
    {"--spec-draft-n-max --draft --draft-n", "draft-max"},
    {"--cors-origins", "cors-origin"},
    {"--sse-ping-interval", "sse-ping-s"},
    {"--ssl-cert-file --ssl-certfile", "tls-cert"},
    {"--ssl-key-file --ssl-keyfile", "tls-key"},
};

// What is always so.
constexpr std::string_view kAlways =
    "--jinja --metrics --slots --ui --webui --cache-prompt --no-context-shift --no-mmproj "
    "--no-mmproj-auto --prefill-assistant --no-skip-chat-parsing --no-agent -no-ag "
    "--no-ui-mcp-proxy --no-webui-mcp-proxy --no-log-jsonl --embedding --embeddings "
    "--enable-prefix-caching "
    "--enable-chunked-prefill --enable-auto-tool-choice";

// How llama-server and vLLM compute: no answer depends on it.
struct Ignored {
  std::string_view names;
  size_t num_values;
};

constexpr Ignored kIgnored[] = {
    {"-ngl --gpu-layers --n-gpu-layers -sm --split-mode -ts --tensor-split -mg --main-gpu -dev "
     "--device -ncmoe --n-cpu-moe -ncffn --n-cpu-ffn -fitt --fit-target -fitc --fit-ctx",
     1},
    {"-b --batch-size -ub --ubatch-size -tb --threads-batch --threads-http --prio --prio-batch "
     "--poll --poll-batch --numa -lm --load-mode -lzm --lazy-mode -dt --defrag-thold -sps "
     "--slot-prompt-similarity -ctxcp --ctx-checkpoints --swa-checkpoints -cms "
     "--checkpoint-min-step --tags -cram --cache-ram --gpu-memory-utilization -tp "
     "--tensor-parallel-size -pp --pipeline-parallel-size --max-num-batched-tokens "
     "--tool-call-parser",
     1},
    {"-cb --cont-batching --mlock --mmap --no-mmap -dio --direct-io -ndio --no-direct-io -cmoe "
     "--cpu-moe -kvo --kv-offload -nkvo --no-kv-offload --op-offload --no-op-offload --repack -nr "
     "--no-repack --no-host --perf --no-perf --warmup --no-warmup --swa-full -kvu --kv-unified "
     "-no-kvu --no-kv-unified --cache-idle-slots --no-cache-idle-slots -bs --backend-sampling -e "
     "--escape --no-escape --log-prefix --no-log-prefix --log-timestamps --no-log-timestamps "
     "--mmproj-offload --no-mmproj-offload --no-jinja -cmoed --cpu-moe-draft "
     "--spec-draft-cpu-moe --spec-draft-backend-sampling --no-spec-draft-backend-sampling "
     "--enforce-eager "
     "--trust-remote-code --disable-log-requests",
     0},
    {"--spec-ngram-* --draft-min *-n-min *-p-min *-p-split -td --threads-draft -tbd "
     "--threads-batch-draft -Cd --cpu-mask-draft -Crd --cpu-range-draft -Cbd -Crbd -ctkd "
     "--cache-type-k-draft -ctvd --cache-type-v-draft -otd --override-tensor-draft -ncmoed "
     "--n-cpu-moe-draft -devd --device-draft -ngld --gpu-layers-draft --n-gpu-layers-draft "
     "--spec-draft-ngl --spec-draft-threads* --spec-draft-device --spec-draft-type-* "
     "--spec-draft-n-cpu-moe --spec-draft-ncmoe --spec-draft-override-tensor --spec-draft-poll* "
     "--spec-draft-prio* --spec-draft-cpu-mask* --spec-draft-cpu-range* --spec-draft-cpu-strict* "
     "-lcs "
     "-lcd --lookup-cache-*",
     1},
};
// Their value may be left out.
constexpr std::string_view kIgnoredSwitches = "-fa --flash-attn -fit --fit --log-colors";
constexpr std::string_view kSwitchValues = "on off auto 0 1";

// `names` may begin or end with a *.
struct Refused {
  std::string_view names;
  std::string_view reason;
};

constexpr Refused kRefused[] = {
    {"-mm --mmproj* -mmu -mmdev --image-min-tokens --image-max-tokens --mtmd-* --video-* "
     "--media-path",
     "images, audio and video are not available"},
    {"--control-vector*", "control vectors are not available"},
    {"*-draft --spec-* --no-spec-*",
     "the draft model is computed as the model is; --draft-model and --draft-max say which and how "
     "much"},
    {"--rope-* --yarn-*", "positions are as the model's files say"},
    {"--grammar --grammar-file -j --json-schema -jf --json-schema-file",
     "give it with each request: grammar, json_schema or response_format"},
    {"--typical* --xtc-* --dry-* --mirostat* --dynatemp-* --top-nsigma --top-n-sigma --adaptive-*",
     "this sampler is not available"},
    {"--samplers --sampler-seq --sampling-seq", "the order of samplers is fixed"},
    {"--repeat-last-n", "--repetition-penalty looks at the whole prompt and answer"},
    {"-l --logit-bias", "give logit_bias with each request"},
    {"--ignore-eos", "give ignore_eos with each request"},
    {"-r --reverse-prompt", "give stop with each request"},
    {"-sp --special", "give skip_special_tokens: false with each request"},
    {"--cache-reuse",
     "only what a prompt has in common from its beginning is reused; give 0, or leave it out"},
    {"--no-cache-prompt --no-enable-prefix-caching",
     "--cache sequence shares nothing between requests"},
    {"--kv-unified-per-slot", "--ctx-size is the limit of each sequence"},
    {"--props", "settings cannot change while the server runs"},
    {"--embd-*", "embeddings have unit length"},
    {"--rerank --reranking --cls-separator", "reranking is not available"},
    {"--ssl-*", "--tls-cert and --tls-key are all that TLS takes"},
    {"--path --api-prefix --ui-* --webui-* -ag --agent --tools --tools-runtime --mcp-*",
     "the server serves its own page and no others, at /"},
    {"--cors-methods --cors-headers --cors-credentials --no-cors-credentials",
     "--cors-origin says which pages may call"},
    {"--reuse-port --models-* --no-models-* --sleep-idle-seconds",
     "a server has one port and one model, which stays loaded"},
    {"-mu --model-url -dr --docker-repo", "-hf fetches from Hugging Face; give other files to -m"},
    {"-hff --hf-file", "name the file after the model: -hf owner/name:file.gguf"},
    {"-hft --hf-token", "set HF_TOKEN: other users of the machine can read a command line"},
    {"--offline", "set HF_HUB_OFFLINE=1"},
    {"--embd-gemma-default --fim-* --gpt-oss-* --vision-*", "name the model with -hf"},
    {"--reasoning-format --slot-save-path --pooling", "'kvasir serve' has it"},
    {"--reasoning-effort --reasoning-budget-message --reasoning-preserve --no-reasoning-preserve",
     "templates take such switches from --chat-template-kwargs"},
    {"--skip-chat-parsing", "give reasoning_format and tool_choice \"none\" with each request"},
    {"--no-prefill-assistant", "give continue_final_message: false with each request"},
    {"-to --timeout", "--timeout-ms limits requests"},
    {"--spm-infill", "/infill has the order of parts that the model's vocabulary says"},
    {"-v --verbose -lv --verbosity --log-*", "--log-level says what goes to stderr"},
    {"-C --cpu-* -Cr -Cb -Crb", "taskset says where the process runs; --pin-threads pins threads"},
    {"--rpc", "one machine computes"},
    {"--kv-cache-dtype", "--kv-format says how K and V are stored"},
    {"-ot --override-tensor --override-kv --check-tensors --dtype --quantization",
     "files are used as they are"},
    {"-cl --cache-list", "'kvasir models' lists the models"},
    {"-nocb --no-cont-batching", "--parallel 1 runs one request at a time"},
    {"--list-devices --completion-bash", "it is not available"},
};

// Calls `visit` with each name of a list with spaces between them.
template <typename Visit>
void ForEachName(std::string_view list, const Visit& visit) {
  while (!list.empty()) {
    const size_t end = std::min(list.find(' '), list.size());
    visit(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
}

bool Lists(std::string_view list, std::string_view name) {
  bool found = false;
  ForEachName(list, [&](std::string_view one) {
    if (one.ends_with('*')) {
      found |= name.starts_with(one.substr(0, one.size() - 1));
    } else if (one.starts_with('*')) {
      found |= name.ends_with(one.substr(1));
    } else {
      found |= one == name;
    }
  });
  return found;
}

const Flag* FlagOf(std::span<const Flag> flags, std::string_view name) {
  const auto flag = std::ranges::find(flags, name, &Flag::name);
  return flag == flags.end() ? nullptr : &*flag;
}

// Returns the KV format of a type that --cache-type-k or -v names.
Result<std::string> KvFormatOf(std::string_view given, std::string_view type) {
  constexpr std::pair<std::string_view, std::string_view> kTypes[] = {
      {"f32", "f32"}, {"f16", "f16"}, {"bf16", "bf16"}, {"q8_0", "int8"}, {"q4_0", "int4"}};
  for (const auto& [name, format] : kTypes) {
    if (name == type) return std::string(format);
  }
  return Fail(Code::kInvalidArgument,
              "{}: '{}' is not available; give f32, f16, bf16, q8_0 (as --kv-format int8) or q4_0 "
              "(int4)",
              given, type);
}

// Returns what --spec-type says for --speculate: kinds with commas between them.
Result<std::string> SpeculateOf(std::string_view types) {
  bool any = false;
  for (size_t begin = 0; begin <= types.size();) {
    const size_t end = std::min(types.find(',', begin), types.size());
    const std::string_view type = types.substr(begin, end - begin);
    if (!Lists("none draft-simple ngram-*", type)) {
      return Fail(Code::kInvalidArgument,
                  "--spec-type: '{}' is not available; give none (as --speculate off), "
                  "draft-simple or ngram-... (as --speculate auto)",
                  type);
    }
    any |= type != "none";
    begin = end + 1;
  }
  return any ? "auto" : "off";
}

class Rewriter {
 public:
  Rewriter(std::string_view command, std::span<const Flag> flags, std::span<char* const> arguments)
      : command_(command), flags_(flags), arguments_(arguments.begin(), arguments.end()) {}

  Result<RewrittenArguments> Run() && {
    while (next_ < arguments_.size()) {
      if (arguments_[next_] == "--") break;
      KV_TRY(Take(arguments_[next_++]));
    }
    if (!k_.empty() || !v_.empty()) {
      Put("--kv-format");
      Put(fmt::format("k={},v={}", k_.empty() ? "f16" : k_, v_.empty() ? "f16" : v_));
    }
    if (shifts_ && has_retention_) {
      return Fail(Code::kInvalidArgument,
                  "--context-shift: is --retention sinks+window:budget=context; give one of both");
    }
    if (shifts_) {
      Put("--retention");
      Put("sinks+window:budget=context,keep=" + keep_.value_or("0"));
    } else if (keep_) {
      out_.ignored.push_back("--keep " + *keep_);
    }
    while (next_ < arguments_.size()) Put(arguments_[next_++]);
    return std::move(out_);
  }

 private:
  void Put(std::string argument) { out_.arguments.push_back(std::move(argument)); }

  // Returns the value of the flag: the text after its '=', or the next argument.
  Result<std::string> ValueOf(std::string_view name, const std::optional<std::string>& joined) {
    if (joined) return *joined;
    if (next_ < arguments_.size()) return arguments_[next_++];
    return Fail(Code::kInvalidArgument, "{} needs a value; see 'kvasir {} --help'", name, command_);
  }

  Status Take(std::string argument) {
    const bool is_long = argument.starts_with("--");
    const size_t equals = is_long ? argument.find('=') : argument.npos;
    const auto name_end = argument.begin() + std::min(equals, argument.size());
    if (is_long) std::replace(argument.begin(), name_end, '_', '-');  // as llama-server takes them
    const std::string name = argument.substr(0, equals);
    std::optional<std::string> joined;
    if (equals != argument.npos) joined = argument.substr(equals + 1);
    for (const Alias& alias : kAliases) {
      const Flag* flag = Lists(alias.names, name) ? FlagOf(flags_, alias.flag) : nullptr;
      if (flag) return TakeAlias(alias, *flag, name, joined);
    }
    const auto own =
        std::ranges::find_if(flags_, [&](const Flag& flag) { return Dashed(flag.name) == name; });
    if (own != flags_.end()) {
      has_retention_ |= name == "--retention";
      Put(argument);
      const bool takes_next = own->kind == FlagKind::kValue || own->kind == FlagKind::kList;
      const bool has_value = takes_next && !joined;
      if (has_value && next_ < arguments_.size()) Put(arguments_[next_++]);
      return {};
    }
    return TakeOther(argument, name, joined);
  }

  Status TakeAlias(const Alias& alias, const Flag& flag, const std::string& name,
                   const std::optional<std::string>& joined) {
    if (flag.kind == FlagKind::kSwitch) {
      Put(Dashed(flag.name) + (joined ? "=" + *joined : ""));
      return {};
    }
    KV_ASSIGN(std::string value, ValueOf(name, joined));
    if (!alias.otherwise.empty() && value == alias.otherwise) return {};
    out_.written[flag.name] = name;
    Put(Dashed(flag.name));
    Put(std::move(value));
    return {};
  }

  // Takes a flag that the command does not have.
  Status TakeOther(const std::string& argument, const std::string& name,
                   const std::optional<std::string>& joined) {
    if (!argument.starts_with('-') || !FlagOf(flags_, "model")) {
      Put(argument);
      return {};
    }
    if (Lists("-ctk --cache-type-k -ctv --cache-type-v", name)) {
      KV_ASSIGN(const std::string type, ValueOf(name, joined));
      KV_ASSIGN((name.ends_with('k') ? k_ : v_), KvFormatOf(name, type));
      return {};
    }
    if (name == "--spec-type" && FlagOf(flags_, "speculate")) {
      KV_ASSIGN(const std::string types, ValueOf(name, joined));
      Put("--speculate");
      KV_ASSIGN(std::string speculate, SpeculateOf(types));
      Put(std::move(speculate));
      return {};
    }
    if (name == "--context-shift" && FlagOf(flags_, "retention")) {
      shifts_ = true;
      return {};
    }
    if (name == "--keep" && FlagOf(flags_, "retention")) {
      KV_ASSIGN(keep_, ValueOf(name, joined));
      return {};
    }
    if (Lists(kAlways, name)) return {};
    if (Lists(kIgnoredSwitches, name)) {
      const bool has_value = next_ < arguments_.size() && Lists(kSwitchValues, arguments_[next_]);
      return Ignore(argument, has_value && !joined ? 1 : 0);
    }
    for (const Ignored& ignored : kIgnored) {
      if (Lists(ignored.names, name)) return Ignore(argument, joined ? 0 : ignored.num_values);
    }
    const std::string next = next_ < arguments_.size() ? arguments_[next_] : "";
    if (name == "--cache-reuse" && joined.value_or(next) == "0") {
      return Ignore(argument, joined ? 0 : 1);
    }
    for (const Refused& refused : kRefused) {
      if (!Lists(refused.names, name)) continue;
      return Fail(Code::kUnsupported, "{}: {} (docs/from-llama-server.md)", name, refused.reason);
    }
    Put(argument);
    return {};
  }

  Status Ignore(std::string text, size_t num_values) {
    for (; num_values > 0; --num_values) {
      KV_ASSIGN(const std::string value, ValueOf(text, std::nullopt));
      text += " " + value;
    }
    out_.ignored.push_back(std::move(text));
    return {};
  }

  const std::string_view command_;
  const std::span<const Flag> flags_;
  const std::vector<std::string> arguments_;
  size_t next_ = 0;
  std::string k_, v_;    // of --cache-type-k and -v
  bool shifts_ = false;  // --context-shift
  bool has_retention_ = false;
  std::optional<std::string> keep_;  // of --keep
  RewrittenArguments out_;
};

}  // namespace

Result<RewrittenArguments> RewriteArguments(std::string_view command, std::span<const Flag> flags,
                                            std::span<char* const> arguments) {
  return Rewriter(command, flags, arguments).Run();
}

std::optional<std::string> NearestFlag(std::string_view argument, std::span<const Flag> flags) {
  std::vector<std::string> known = {"--help"};
  for (const Flag& flag : flags) known.push_back(Dashed(flag.name));
  for (const Alias& alias : kAliases) {
    if (!FlagOf(flags, alias.flag)) continue;
    ForEachName(alias.names, [&](std::string_view name) { known.emplace_back(name); });
  }
  if (FlagOf(flags, "retention")) known.insert(known.end(), {"--context-shift", "--keep"});
  std::erase_if(known, [](const std::string& name) { return name.size() <= 3; });
  const std::string_view name = argument.substr(0, argument.find('='));
  const auto nearest = Nearest(name, known);
  return nearest || !name.starts_with("--") ? nearest : NearestByParts(name, known);
}

}  // namespace kvasir::cli
