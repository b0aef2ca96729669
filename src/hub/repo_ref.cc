#include "hub/repo_ref.h"

#include <algorithm>

#include "base/ascii.h"
#include "base/file_name.h"
#include "base/hex.h"
#include "base/model_tag.h"

namespace kvasir::hub {
namespace {

constexpr size_t kMaxNameBytes = 96;  // the hub's limit of owner and name

// Tells whether this may name an owner or a model, by the hub's own rule.
bool IsName(std::string_view name) {
  const auto is_allowed = [](char c) {
    return IsAsciiAlnum(c) || c == '-' || c == '_' || c == '.';
  };
  const auto is_edge = [](char c) { return IsAsciiAlnum(c) || c == '_'; };
  return !name.empty() && name.size() <= kMaxNameBytes && std::ranges::all_of(name, is_allowed) &&
         is_edge(name.front()) && is_edge(name.back()) && name.find("--") == name.npos &&
         name.find("..") == name.npos;
}

bool IsRevision(std::string_view text) {
  constexpr std::string_view kMarks = "._-+/";
  return IsSafeFile(text) && text.front() != '-' && std::ranges::all_of(text, [&](char c) {
           return IsAsciiAlnum(c) || kMarks.find(c) != kMarks.npos;
         });
}

// Cuts `text` before the first `mark`; the part after it, or nullopt where there is no mark.
std::optional<std::string> CutAt(char mark, std::string_view& text) {
  const size_t at = text.find(mark);
  if (at == text.npos) return std::nullopt;
  std::string rest(text.substr(at + 1));
  text = text.substr(0, at);
  return rest;
}

}  // namespace

std::string RepoRef::Text() const {
  return repo + (revision ? "@" + *revision : "") + (choice ? ":" + *choice : "");
}

std::optional<RepoRef> ParseRepoRef(std::string_view text) {
  RepoRef ref;
  for (const std::string_view copied : {"https://", "huggingface.co/", "hf.co/"}) {
    if (text.starts_with(copied)) text.remove_prefix(copied.size());
  }
  text = WithoutLatest(text);
  ref.choice = CutAt(':', text);
  ref.revision = CutAt('@', text);
  const size_t slash = text.find('/');
  if (slash == text.npos || !IsName(text.substr(0, slash)) || !IsName(text.substr(slash + 1))) {
    return std::nullopt;
  }
  if (ref.revision && !IsRevision(*ref.revision)) return std::nullopt;
  if (ref.choice && !IsSafeFile(*ref.choice)) return std::nullopt;
  ref.repo = text;
  return ref;
}

bool IsCommit(std::string_view text) { return text.size() == 40 && IsHex(text); }

}  // namespace kvasir::hub
