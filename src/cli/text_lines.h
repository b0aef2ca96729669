// TextLines: the lines of files, or of standard input, as they come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "kvasir/status.h"

namespace kvasir::cli {

struct TextLine {
  std::string text;   // UTF-8, without its end (LF, or CR LF) and a file's byte order mark
  std::string place;  // for messages: "line 3", or "'a.txt' line 3"
};

// Holds one line and what one read brought after it. One thread at a time.
class TextLines {
 public:
  static constexpr size_t kMaxBytes = size_t{16} << 20;  // of one line

  // Takes the files, which are opened one after the other; "-", or no file at all: standard input.
  explicit TextLines(std::vector<std::string> paths);

  // Returns the descriptor to wait for with poll() before Read. REQUIRES: Open succeeded and
  // !at_end().
  int fd() const { return file_ ? file_.fd() : 0; }
  bool at_end() const { return at_end_; }  // nothing is left to read; Next may still have lines
  // Opens the first file. Errors as open(2)'s, naming the file.
  Status Open();
  // Reads once, and waits where nothing has come yet. Goes on to the next file at the end of one,
  // and ends a last line that has no line end. Errors name the file.
  Status Read();
  // Returns the next line; absent: more must be read first. kInvalidArgument: it is longer than
  // kMaxBytes or not UTF-8; the message has its place.
  Result<std::optional<TextLine>> Next();

 private:
  std::string Place() const;  // of the line that begins at begin_

  std::vector<std::string> paths_;
  size_t next_path_ = 0;
  std::string name_;  // of the open file; "" and "-": standard input
  Descriptor file_;   // none: standard input
  bool at_end_ = false, file_ended_ = false;
  std::string buffer_;
  size_t begin_ = 0, searched_ = 0;  // of buffer_: after the last line; has no line end up to here
  uint64_t lines_ = 0;               // of this file, that Next returned
};

}  // namespace kvasir::cli
