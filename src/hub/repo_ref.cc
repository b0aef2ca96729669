#include "hub/repo_ref.h"

#include <algorithm>

#include "base/hex.h"
#include "base/utf8.h"

namespace kvasir::hub {
namespace {

constexpr size_t kMaxNameBytes = 96;   // the hub's limit of owner and name
constexpr size_t kMaxPartBytes = 200;  // a file system's limit is 255, with room for suffixes
constexpr size_t kMaxPathBytes = 1024;

bool IsAlnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

// The hub's own rule for the name of an owner or of a model.
bool IsName(std::string_view name) {
  const auto is_allowed = [](char c) { return IsAlnum(c) || c == '-' || c == '_' || c == '.'; };
  const auto is_edge = [](char c) { return IsAlnum(c) || c == '_'; };
  return !name.empty() && name.size() <= kMaxNameBytes && std::ranges::all_of(name, is_allowed) &&
         is_edge(name.front()) && is_edge(name.back()) && name.find("--") == name.npos &&
         name.find("..") == name.npos;
}

bool IsRevision(std::string_view text) {
  constexpr std::string_view kMarks = "._-+/";
  return IsSafeFile(text) && text.front() != '-' && std::ranges::all_of(text, [&](char c) {
           return IsAlnum(c) || kMarks.find(c) != kMarks.npos;
         });
}

// Cuts `text` before the first `mark`; the part behind it, or nullopt where there is no mark.
std::optional<std::string> CutAt(char mark, std::string_view& text) {
  const size_t at = text.find(mark);
  if (at == text.npos) return std::nullopt;
  std::string behind(text.substr(at + 1));
  text = text.substr(0, at);
  return behind;
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

bool IsSafeFile(std::string_view file) {
  if (file.size() > kMaxPathBytes || FirstInvalidUtf8(file) != file.size()) return false;
  if (std::ranges::any_of(file, [](char c) { return IsControl(c) || c == '\\'; })) return false;
  for (size_t begin = 0; begin <= file.size();) {
    const size_t end = std::min(file.find('/', begin), file.size());
    const std::string_view part = file.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > kMaxPartBytes) return false;
    begin = end + 1;
  }
  return true;
}

std::string Printable(std::string_view name) {
  std::string text(name.substr(0, kMaxPartBytes));
  const bool is_utf8 = FirstInvalidUtf8(text) == text.size();
  std::ranges::replace_if(
      text, [&](char c) { return IsControl(c) || (!is_utf8 && (c & 0x80) != 0); }, '?');
  return text;
}

}  // namespace kvasir::hub
