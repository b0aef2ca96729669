#include "cli/text_lines.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/result.h"
#include "base/system_error.h"
#include "base/utf8.h"

namespace kvasir::cli {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // at the beginning of a file

}  // namespace

TextLines::TextLines(std::vector<std::string> paths) : paths_(std::move(paths)) {}

Status TextLines::Open() {
  if (next_path_ == paths_.size()) {
    at_end_ = !paths_.empty();
    return {};
  }
  name_ = paths_[next_path_++];
  lines_ = 0;
  file_ended_ = false;
  file_ = Descriptor(name_ == "-" ? -1 : open(name_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file_ && name_ != "-") return FailErrno(errno, "cannot open '{}'", name_);
  return {};
}

Status TextLines::Read() {
  if (file_ended_) {
    if (!paths_.empty()) return Open();
    at_end_ = true;
    return {};
  }
  char bytes[size_t{64} << 10];
  const ssize_t size = read(fd(), bytes, sizeof bytes);
  if (size < 0) {
    if (errno == EINTR || errno == EAGAIN) return {};
    if (errno == EISDIR) {
      return Fail(Code::kInvalidArgument, "'{}' is a folder; give files", name_);
    }
    return FailErrno(errno, "cannot read {}",
                     name_.empty() ? "standard input" : fmt::format("'{}'", name_));
  }
  searched_ = std::max(begin_, searched_) - begin_;
  buffer_.erase(0, std::exchange(begin_, 0));
  buffer_.append(bytes, static_cast<size_t>(size));
  if (size > 0) return {};
  file_ended_ = true;
  if (!buffer_.empty()) buffer_ += '\n';  // Read went on only when Next had no whole line left
  return {};
}

std::string TextLines::Place() const {
  const std::string line = fmt::format("line {}", lines_ + 1);
  return name_.empty() ? line : fmt::format("'{}' {}", name_, line);
}

Result<std::optional<TextLine>> TextLines::Next() {
  const size_t end = buffer_.find('\n', std::max(begin_, searched_));
  const size_t size = (end == buffer_.npos ? buffer_.size() : end) - begin_;
  if (size > kMaxBytes) {
    return Fail(Code::kInvalidArgument, "{} has more than {} bytes; cut it into lines", Place(),
                kMaxBytes);
  }
  if (end == buffer_.npos) {
    searched_ = buffer_.size();
    return std::nullopt;
  }
  TextLine line{buffer_.substr(begin_, size), Place()};
  if (const size_t invalid = FirstInvalidUtf8(line.text); invalid != line.text.size()) {
    return Fail(Code::kInvalidArgument, "{} is not UTF-8 at byte {}", line.place, invalid);
  }
  if (line.text.ends_with('\r')) line.text.pop_back();
  if (lines_ == 0 && line.text.starts_with(kByteOrderMark))
    line.text.erase(0, kByteOrderMark.size());
  begin_ = end + 1;
  ++lines_;
  return line;
}

}  // namespace kvasir::cli
