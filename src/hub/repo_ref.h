// RepoRef: which model of a hub is meant, as users write it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvasir::hub {

struct RepoRef {
  std::string repo;                     // "owner/name"
  std::optional<std::string> revision;  // a branch, tag or commit; absent: main
  std::optional<std::string> choice;    // a GGUF file, a quant, or "safetensors"

  std::string Revision() const { return revision.value_or("main"); }
  std::string Text() const;  // as it is written
};

inline constexpr std::string_view kRepoForm = "owner/name[@revision][:file or quant]";

// Reads kRepoForm; ":latest" at its end chooses nothing. nullopt: `text` has another form. Every
// part can be used in a path: none is or contains "..", and only the revision and the file may
// contain
// '/'.
std::optional<RepoRef> ParseRepoRef(std::string_view text);

// Tells whether `text` is a commit: 40 hexadecimal digits, lower case.
bool IsCommit(std::string_view text);

}  // namespace kvasir::hub
