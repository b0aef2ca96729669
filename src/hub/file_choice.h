// FileChoice: which of a repository's files make up a model that Kvasir can run.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir::hub {

// A folder of safetensors is chosen by this word.
inline constexpr std::string_view kFolderChoice = "safetensors";

// One model among the files of a repository. Names are relative, with '/'.
struct FileChoice {
  std::string label;               // what to write after ':': the (first) GGUF file, kFolderChoice
  std::vector<std::string> files;  // a GGUF file or all its parts in order; or a folder's files
                                   // (of its shards, those that `shards` named)
  size_t parts = 1;                // that a split GGUF file says it has
  std::vector<std::string> missing;  // of `shards`: those that are not among the files

  bool is_folder() const { return label == kFolderChoice; }
  bool is_whole() const { return is_folder() ? missing.empty() : files.size() == parts; }
};

// Returns the models among `files`: each GGUF file (the parts of a split one are one model; mmproj
// files do not count), and the folder, if there are a config.json and safetensors. `shards`: what
// the index among them names (ReadShardNames). O(n log n).
std::vector<FileChoice> ModelsAmong(std::span<const std::string> files,
                                    std::span<const std::string> shards = {});

// Returns the one that `choice` means: a file's name, kFolderChoice, or a quant that the names of
// the GGUF files contain as a word, in either case. Without a choice: the only model, else the
// Q4_K_M. `where` begins the messages. kNotFound: there is no such model, or parts of it are
// missing. kInvalidArgument: several are meant; the message lists them.
Result<FileChoice> ChooseModel(std::span<const std::string> files,
                               const std::optional<std::string>& choice, std::string_view where);
// Chooses also where parts are missing, and with `shards`.
Result<FileChoice> ChooseParts(std::span<const std::string> files,
                               std::span<const std::string> shards,
                               const std::optional<std::string>& choice, std::string_view where);

// Tells whether a file is one that models need beside their weights: config.json, tokenizer.json,
// ...
bool IsTextFile(std::string_view file);

}  // namespace kvasir::hub
