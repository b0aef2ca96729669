#include "cli/args.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "base/ascii.h"
#include "base/bytes.h"
#include "base/json_object.h"
#include "base/mapped_file.h"
#include "base/nearest.h"
#include "base/result.h"
#include "cli/flag_aliases.h"

namespace kvasir::cli {
namespace {

tl::unexpected<Error> Wrong(const std::string& flag, std::string_view value,
                            std::string_view takes) {
  return Fail(Code::kInvalidArgument, "{}: '{}' is not valid; give {}", flag, value, takes);
}

// Returns "an empty array", "a string", "null"; of a number its digits; names the first item that
// must not be in an array.
std::string Described(const nlohmann::json& value) {
  for (size_t i = 0; value.is_array() && i < value.size(); ++i) {
    if (value[i].is_string()) continue;
    return fmt::format("an array whose item {} is {}", i, Described(value[i]));
  }
  if (value.is_null() || value.is_number()) return value.dump();
  return fmt::format("{} {}",
                     value.empty()           ? "an empty"
                     : value.is_structured() ? "an"
                                             : "a",
                     value.type_name());
}

// Tells by its placeholder whether a flag takes a number with a fraction. In others the number 1e3
// would become a text that its writer did not mean.
bool TakesFraction(const Flag& flag) {
  constexpr std::string_view kPlaceholders[] = {"T", "P", "X", "SHARE"};
  return flag.kind == FlagKind::kValue && std::ranges::count(kPlaceholders, flag.value) > 0;
}

// Returns the texts of one JSON value of a config file; nullopt: a type that no flag takes.
std::optional<std::vector<std::string>> TextsOf(const nlohmann::json& value, const Flag& flag) {
  const FlagKind kind = flag.kind;
  if (kind == FlagKind::kSwitch) {
    if (!value.is_boolean()) return std::nullopt;
    return std::vector<std::string>(value.get<bool>() ? 1 : 0, "true");
  }
  if (value.is_string()) return std::vector{value.get<std::string>()};
  // Lists have names and keys, where the text "007" differs from the number 7.
  if (value.is_number_float() && TakesFraction(flag)) return std::vector{value.dump()};
  if (value.is_number_integer() && kind != FlagKind::kList) return std::vector{value.dump()};
  if (kind != FlagKind::kList || !value.is_array() || value.empty()) return std::nullopt;
  std::vector<std::string> texts;
  for (const nlohmann::json& item : value) {
    if (!item.is_string()) return std::nullopt;
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

// Returns the key that the unknown one resembles most; absent: none does.
std::optional<std::string> NearestKey(std::string_view key, std::span<const Flag> flags) {
  key.remove_prefix(std::min(key.find_first_not_of('-'), key.size()));
  std::string word(key);  // ctx_size, CTX-SIZE
  for (char& c : word) c = c == '_' ? '-' : LowerAscii(c);
  std::vector<std::string> names;
  for (const Flag& flag : flags) {
    if (flag.absent_part || flag.name == "config" || flag.name == "help") continue;
    if (flag.name == word) return word;
    names.push_back(flag.name);
  }
  return Nearest(word, names);
}

Status RefuseAbsent(const Flag& flag) {
  if (!flag.absent_part) return {};
  return Fail(Code::kUnsupported, "{}: {} is not available in this version; leave the flag out",
              Dashed(flag.name), *flag.absent_part);
}

// Checks the values of one flag: how often it is given, and whether it may have a value.
Status CheckGiven(const Flag& flag, const std::vector<std::string>& values) {
  if (values.empty()) return {};
  KV_TRY(RefuseAbsent(flag));
  const std::string name = Dashed(flag.name);
  const auto is_true = [](const std::string& value) { return value == "true"; };
  if (flag.kind == FlagKind::kSwitch && !std::ranges::all_of(values, is_true)) {
    return Fail(Code::kInvalidArgument, "{}: takes no value; give the flag alone, or leave it out",
                name);
  }
  const bool is_once = flag.kind == FlagKind::kValue || flag.kind == FlagKind::kOptional;
  if (is_once && values.size() > 1) {
    return Fail(Code::kInvalidArgument, "{}: given {} times; give it once", name, values.size());
  }
  return {};
}

}  // namespace

std::string Dashed(std::string_view name) {
  return (name.size() == 1 ? "-" : "--") + std::string(name);
}

void Args::Set(const std::string& name, std::vector<std::string> values) {
  values_[name] = std::move(values);
}

std::string Args::Written(const std::string& name) const {
  const auto it = written_.find(name);
  return it == written_.end() ? Dashed(name) : it->second;
}

std::optional<std::string> Args::Text(const std::string& name) const {
  const auto it = values_.find(name);
  if (it == values_.end() || it->second.empty()) return std::nullopt;
  return it->second.back();
}

std::vector<std::string> Args::List(const std::string& name) const {
  const auto it = values_.find(name);
  return it == values_.end() ? std::vector<std::string>{} : it->second;
}

Result<uint64_t> Args::Uint(const std::string& name, uint64_t min, uint64_t max,
                            uint64_t otherwise) const {
  const std::optional<std::string> text = Text(name);
  if (!text) return otherwise;
  const std::optional<uint64_t> value = ParseUint(*text);
  if (value && *value >= min && *value <= max) return *value;
  return Wrong(Written(name), *text, "a whole number " + RangeText(*text, min, max));
}

Result<uint64_t> Args::Bytes(const std::string& name, uint64_t otherwise) const {
  const std::optional<std::string> text = Text(name);
  if (!text) return otherwise;
  const std::optional<uint64_t> value = ParseBytes(*text);
  if (!value || *value == 0)
    return Wrong(Written(name), *text, "a size such as 2GiB, 512MiB, 1G or 65536");
  return *value;
}

Result<float> Args::Float(const std::string& name, FloatRange range, float otherwise) const {
  const std::optional<std::string> text = Text(name);
  if (!text) return otherwise;
  double value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  // The comparison is false for NaN.
  if (error != std::errc() || end != text->data() + text->size() ||
      !(value >= range.min && value <= range.max)) {
    return Wrong(Written(name), *text, fmt::format("a number from {} to {}", range.min, range.max));
  }
  return static_cast<float>(value);
}

Result<std::string> Args::OneOf(const std::string& name, std::span<const std::string_view> choices,
                                std::string_view otherwise) const {
  const std::string text = Text(name).value_or(std::string(otherwise));
  // GGUF files write formats in capitals: Q8_0.
  const auto chosen = std::ranges::find(choices, LowerAscii(text));
  if (chosen != choices.end()) return std::string(*chosen);
  return Wrong(Written(name), text,
               fmt::format("{}", fmt::join(choices.begin(), choices.end(), ", ")));
}

Result<std::vector<uint64_t>> Args::UintList(const std::string& name, uint64_t min, uint64_t max,
                                             std::vector<uint64_t> otherwise) const {
  const std::optional<std::string> text = Text(name);
  if (!text) return otherwise;
  std::vector<uint64_t> values;
  std::istringstream parts(*text + ",");
  for (std::string part; std::getline(parts, part, ',');) {
    const std::string_view item = Trimmed(part, " ");
    const std::optional<uint64_t> value = ParseUint(item);
    if (!value || *value < min || *value > max) {
      return Fail(Code::kInvalidArgument,
                  "{}: item {} is '{}'; give numbers {}, separated by commas", Written(name),
                  values.size(), item, RangeText(item, min, max));
    }
    values.push_back(*value);
  }
  return values;
}

Result<std::string> ReadFlagFile(const std::string& name, const std::string& path,
                                 std::string_view takes) {
  constexpr uint64_t kMaxBytes = uint64_t{16} << 20;
  const Result<FileStamp> stamp = StampOf(path);  // only a regular file is opened
  Result<std::string> text = stamp ? ReadTextFile(path, kMaxBytes) : tl::unexpected(stamp.error());
  if (text) return text;
  const bool is_other = !stamp && stamp.error().code == Code::kInvalidArgument;  // a folder, say
  return Fail(text.error().code == Code::kIoError ? Code::kIoError : Code::kInvalidArgument,
              "{}: {}{}{}", Dashed(name), text.error().message, is_other ? "; give " : "",
              is_other ? takes : "");
}

Status Args::MergeConfig(const std::string& path, std::span<const Flag> flags) {
  KV_ASSIGN(const std::string text, ReadFlagFile("config", path, "a JSON file"));
  std::set<std::string> keys;
  std::optional<std::string> doubled;  // the parser would keep only the last one
  const auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& key) {
    if (event != nlohmann::json::parse_event_t::key || depth != 1) return true;
    if (!keys.insert(key.get<std::string>()).second) doubled = key.get<std::string>();
    return true;
  };
  const Result<nlohmann::json> json = ParseJsonObject(text, path, watch);
  if (!json) {
    return Fail(Code::kInvalidArgument, "--config: {}; write {{\"port\": 8080, ...}}",
                json.error().message);
  }
  if (doubled) {
    return Fail(Code::kInvalidArgument, "--config: {} has the key '{}' more than once; keep one",
                path, *doubled);
  }
  if (json->contains("architectures") || json->contains("model_type")) {
    const std::string folder = std::filesystem::path(path).parent_path().string();
    return Fail(Code::kInvalidArgument,
                "--config: {} is the configuration of a model, and --config takes a file of flags, "
                "such as {{\"port\": 8080}}; give the model's folder as --model {}",
                path, folder.empty() ? "." : folder);
  }
  for (const auto& [key, value] : json->items()) {
    const auto flag = std::ranges::find(flags, key, &Flag::name);
    if (flag == flags.end() || key == "config" || key == "help") {
      const auto nearest = NearestKey(key, flags);
      return Fail(Code::kInvalidArgument,
                  "--config: {} has the unknown key '{}'{}; keys are flags without the leading --, "
                  "such as kv-memory",
                  path, key, nearest ? fmt::format(" (did you mean '{}'?)", *nearest) : "");
    }
    KV_TRY(RefuseAbsent(*flag));
    std::optional<std::vector<std::string>> texts = TextsOf(value, *flag);
    if (!texts || std::ranges::any_of(
                      *texts, [](const std::string& one) { return one.find('\0') != one.npos; })) {
      constexpr const char* kTakes[] = {"a string or a whole number", "true or false",
                                        "a string, or an array of at least one string", "a string"};
      return Fail(
          Code::kInvalidArgument, "--config: {}: key '{}' takes {}; it is {}", path, key,
          TakesFraction(*flag) ? "a string or a number" : kTakes[static_cast<size_t>(flag->kind)],
          Described(value));
    }
    if (Has(key) || texts->empty()) continue;
    Set(key, std::move(*texts));
    from_config_.insert(key);
    written_[key] = fmt::format("--config: {}: key '{}'", path, key);
  }
  return {};
}

namespace {

// The arguments as they were given, before anything is checked.
struct Given {
  std::map<std::string, std::vector<std::string>> values;  // of each flag, in their order
  std::vector<std::string> others;  // neither a flag of the table nor a value
  size_t first_literal = 0;         // of others: the first one after --
};

// Tells whether `argument` is a flag, not an optional value: a letter follows its dashes.
bool LooksLikeFlag(std::string_view argument) {
  const size_t begin = argument.starts_with("--") ? 2 : 1;
  return argument.starts_with('-') && argument.size() > begin && IsAsciiLetter(argument[begin]);
}

class ArgumentReader {
 public:
  ArgumentReader(std::span<const Flag> flags, std::vector<std::string> arguments)
      : arguments_(std::move(arguments)) {
    for (const char* name : {"help", "h"}) kinds_[Dashed(name)] = {"help", FlagKind::kSwitch};
    if (std::ranges::any_of(flags, &Flag::is_expert)) {
      kinds_["--help-expert"] = {"help-expert", FlagKind::kSwitch};
    }
    for (const Flag& flag : flags) kinds_[Dashed(flag.name)] = {flag.name, flag.kind};
  }

  // Returns the arguments, or the flag, with its dashes, whose value is missing.
  tl::expected<Given, std::string> Read() {
    while (next_ < arguments_.size()) {
      const std::string argument = std::move(arguments_[next_++]);
      if (argument == "--") break;
      const bool is_long = argument.starts_with("--");
      const std::optional<std::string> missing = is_long ? ReadLong(argument) : ReadShort(argument);
      if (missing) return tl::unexpected(*missing);
    }
    given_.first_literal = given_.others.size();
    std::move(arguments_.begin() + next_, arguments_.end(), std::back_inserter(given_.others));
    return std::move(given_);
  }

 private:
  // Returns the flag if it needs a value and has none, as ReadShort does.
  std::optional<std::string> ReadLong(const std::string& argument) {
    const size_t equals = argument.find('=');
    const auto kind = kinds_.find(argument.substr(0, equals));
    if (kind == kinds_.end()) {
      given_.others.push_back(argument);
      return std::nullopt;
    }
    if (equals == argument.npos) return TakeNext(*kind);
    given_.values[kind->second.name].push_back(argument.substr(equals + 1));
    return std::nullopt;
  }

  // Reads one letter and its value, or switches of one letter.
  std::optional<std::string> ReadShort(const std::string& argument) {
    if (!argument.starts_with('-')) {
      given_.others.push_back(argument);
      return std::nullopt;
    }
    size_t at = 1;
    do {
      const auto kind = kinds_.find("-" + argument.substr(at, 1));
      if (kind == kinds_.end()) {
        given_.others.push_back("-" + argument.substr(at));
        return std::nullopt;
      }
      ++at;
      if (kind->second.kind == FlagKind::kSwitch || at == argument.size()) {
        if (auto missing = TakeNext(*kind)) return missing;
      } else {
        given_.values[kind->second.name].push_back(argument.substr(at));
        return std::nullopt;
      }
    } while (at < argument.size());
    return std::nullopt;
  }

  struct NameAndKind {
    std::string name;
    FlagKind kind;
  };

  // Gives the flag the argument that follows it.
  std::optional<std::string> TakeNext(const std::pair<const std::string, NameAndKind>& flag) {
    std::vector<std::string>& values = given_.values[flag.second.name];
    const bool has_next = next_ < arguments_.size();
    if (flag.second.kind == FlagKind::kSwitch) {
      values.push_back("true");
    } else if (flag.second.kind == FlagKind::kOptional &&
               (!has_next || arguments_[next_] == "--" || LooksLikeFlag(arguments_[next_]))) {
      values.emplace_back();
    } else if (!has_next) {
      return flag.first;
    } else {
      values.push_back(std::move(arguments_[next_++]));
    }
    return std::nullopt;
  }

  std::map<std::string, NameAndKind, std::less<>> kinds_;  // by the name with its dashes
  std::vector<std::string> arguments_;
  size_t next_ = 0;
  Given given_;
};

}  // namespace

Result<Args> ParseArgs(std::string_view command, std::span<const Flag> flags,
                       std::vector<std::string> arguments, size_t max_operands) {
  tl::expected<Given, std::string> given = ArgumentReader(flags, std::move(arguments)).Read();
  if (!given) {
    return Fail(Code::kInvalidArgument, "{} needs a value; see 'kvasir {} --help'", given.error(),
                command);
  }
  Args args;
  for (auto& [name, values] : given->values) args.Set(name, std::move(values));
  if (args.Has("help") || args.Has("help-expert")) return args;
  for (const Flag& flag : flags) KV_TRY(CheckGiven(flag, args.List(flag.name)));
  std::vector<std::string> operands;
  for (size_t i = 0; i < given->others.size(); ++i) {
    const std::string& argument = given->others[i];
    const bool is_operand =
        i >= given->first_literal || argument == "-" || !argument.starts_with('-');
    if (is_operand && operands.size() < max_operands) {
      operands.push_back(argument);
      continue;
    }
    const auto nearest = NearestFlag(argument, flags);
    const bool is_model = !nearest && is_operand && argument != "-" && max_operands == 0 &&
                          std::ranges::find(flags, "model", &Flag::name) != flags.end();
    const std::string cure = nearest    ? fmt::format(" (did you mean {}?)", *nearest)
                             : is_model ? fmt::format(" (a model is --model {})", argument)
                                        : "";
    return Fail(Code::kInvalidArgument,
                "unknown argument '{}'{}; 'kvasir {} --help' lists the flags", argument, cure,
                command);
  }
  if (!operands.empty()) args.Set(kOperands, std::move(operands));
  return args;
}

}  // namespace kvasir::cli
