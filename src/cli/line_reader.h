// LineReader: lines of standard input, with editing and a history where it is a terminal.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kvasir::cli {

// At most one exists at a time. The history lives in memory only.
class LineReader {
 public:
  enum class End { kLine, kInput, kInterrupted };  // kInput: there are no more lines

  // Makes the tab key complete a line's first word to one of `words`, which must outlive this.
  explicit LineReader(std::span<const std::string_view> words);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  bool is_terminal() const { return is_terminal_; }
  // Shows "> " and waits for a line, which comes without its end.
  End Read(std::string& line);

 private:
  End ReadPlain(std::string& line);
  End ReadEdited(std::string& line);

  const bool is_terminal_;
  std::string buffer_;  // what came after the last line
};

}  // namespace kvasir::cli
