#include "base/file_name.h"

#include <algorithm>

#include "base/utf8.h"

namespace kvasir {
namespace {

constexpr size_t kMaxPartBytes = 200;  // a file system's limit is 255, with room for suffixes
constexpr size_t kMaxPathBytes = 1024;

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

}  // namespace

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

}  // namespace kvasir
