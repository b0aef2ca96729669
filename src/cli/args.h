// Args: the command line as flags with text values, and checked conversions to numbers. Each
// command lists its flags in a table.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/sizes.h"
#include "kvasir/status.h"
#include "kvasir/types.h"

namespace kvasir::cli {

// kList: may be given several times. kOptional: its value may be left out, and is "" then.
enum class FlagKind { kValue, kSwitch, kList, kOptional };

// One flag of a command. `name` has no dashes; one letter makes it `-p`.
struct Flag {
  std::string name;
  std::string value;  // placeholder of the value in help: "N"; "" for a switch
  std::string help;
  FlagKind kind = FlagKind::kValue;
  std::optional<std::string> absent_part = {};  // refused, since this part is not there yet
  std::optional<std::string> field = {};  // of the library's options, where that is another name
  bool is_expert = false;                 // --help-expert lists it instead of --help
  std::string choices = {};  // that shells offer, separated by spaces, where `value` has none
};

struct FloatRange {
  double min, max;
};

// The given flags by name. Errors are kInvalidArgument and name the flag, its value and what it
// takes. Immutable except for MergeConfig.
class Args {
 public:
  void Set(const std::string& name, std::vector<std::string> values);
  // Sets the names that the user wrote for flags, with their dashes.
  void SetWritten(std::map<std::string, std::string> names) { written_ = std::move(names); }
  // Adds values from the JSON object in file `path` for flags that were not given. Its keys must be
  // names of `flags`, each at most once.
  Status MergeConfig(const std::string& path, std::span<const Flag> flags);

  bool Has(const std::string& name) const { return values_.contains(name); }
  // Returns the flag for messages, as the user wrote it: "--n" where that stood for --hypotheses.
  std::string Written(const std::string& name) const;
  // Tells whether its value is from MergeConfig.
  bool IsFromConfig(const std::string& name) const { return from_config_.contains(name); }
  std::optional<std::string> Text(const std::string& name) const;  // the last one given
  std::vector<std::string> List(const std::string& name) const;    // all of them
  Result<uint64_t> Uint(const std::string& name, uint64_t min, uint64_t max,
                        uint64_t otherwise) const;
  Result<uint64_t> Bytes(const std::string& name, uint64_t otherwise) const;
  Result<float> Float(const std::string& name, FloatRange range, float otherwise) const;
  Result<std::string> OneOf(const std::string& name, std::span<const std::string_view> choices,
                            std::string_view otherwise) const;
  // Reads "512,4096"; every number must be in [min, max].
  Result<std::vector<uint64_t>> UintList(const std::string& name, uint64_t min, uint64_t max,
                                         std::vector<uint64_t> otherwise) const;

 private:
  std::map<std::string, std::vector<std::string>> values_;
  std::set<std::string> from_config_;
  std::map<std::string, std::string> written_;
};

// Reads the file that flag `name` gives: a regular file of at most 16 MiB. Errors say that the flag
// takes `takes`.
Result<std::string> ReadFlagFile(const std::string& name, const std::string& path,
                                 std::string_view takes);

// Returns "--threads" for "threads", "-p" for "p".
std::string Dashed(std::string_view name);

// The name under which Args::List has the arguments that no flag takes.
inline constexpr const char* kOperands = "";

// Reads the arguments after the command's name: --flag VALUE, --flag=VALUE, -f VALUE, -fVALUE, and
// switches of one letter together (-vw). kInvalidArgument: an unknown flag, a missing value
// or too many, a flag of a part that does not exist yet, more than max_operands arguments without a
// flag. After "--" no argument is a flag. Sets "help" for -h and --help, and "help-expert" for
// --help-expert if the command has such flags; then nothing else is checked.
Result<Args> ParseArgs(std::string_view command, std::span<const Flag> flags,
                       std::vector<std::string> arguments, size_t max_operands = 0);

}  // namespace kvasir::cli
