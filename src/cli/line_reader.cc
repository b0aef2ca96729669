#include "cli/line_reader.h"

#include <editline/readline.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "cli/interrupt.h"

namespace kvasir::cli {
namespace {

constexpr char kPrompt[] = "> ";
constexpr int kKeptLines = 1000;

// What libedit's handler, which has no argument, was called with.
struct Edited {
  bool is_done = false;
  std::optional<std::string> line;  // absent: Ctrl-D
} edited;

void TakeEdited(char* line) {
  edited.is_done = true;
  if (line != nullptr) edited.line = line;
  std::free(line);
  // Else the next prompt would be shown before the answer.
  rl_callback_handler_remove();
}

std::span<const std::string_view> known_words;

// Returns the next of the words that begin so, as libedit asks for them: `state` is 0 for the
// first.
char* NextWord(const char* text, int state) {
  static size_t next = 0;
  if (state == 0) next = 0;
  while (next < known_words.size()) {
    const std::string_view word = known_words[next++];
    if (word.starts_with(text)) return strndup(word.data(), word.size());
  }
  return nullptr;
}

char** Complete(const char* text, int begin, int /*end*/) {
  rl_attempted_completion_over = 1;  // else names of files
  return begin == 0 && *text != '\0' ? rl_completion_matches(text, NextWord) : nullptr;
}

// Ends the input at Ctrl-D on an empty line. (libedit's own binding does not call a handler.)
int EndInput(int /*count*/, int /*key*/) {
  if (rl_end == 0) edited.is_done = true;
  return 0;
}

// Waits until a byte of standard input has come (true) or Ctrl-C was pressed.
bool WaitForInput(const InterruptScope& interrupt) {
  while (true) {
    pollfd waits[] = {{STDIN_FILENO, POLLIN, 0}, {interrupt.fd(), POLLIN, 0}};
    if (poll(waits, 2, -1) < 0 && errno == EINTR) continue;
    return !interrupt.interrupted();
  }
}

}  // namespace

LineReader::LineReader(std::span<const std::string_view> words)
    : is_terminal_(isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1) {
  if (!is_terminal_) return;
  // Keys of more than one byte are characters only in a locale of UTF-8.
  if (const char* locale = std::setlocale(LC_CTYPE, "");
      locale == nullptr || std::string_view(locale) == "C" || std::string_view(locale) == "POSIX") {
    std::setlocale(LC_CTYPE, "C.UTF-8");
  }
  rl_readline_name = const_cast<char*>("kvasir");
  rl_catch_signals = 0;  // InterruptScope does
  known_words = words;
  rl_attempted_completion_function = Complete;
  rl_initialize();
  rl_add_defun("kvasir-end-input", EndInput, '\4');
  using_history();
  stifle_history(kKeptLines);
}

LineReader::~LineReader() {
  if (is_terminal_) clear_history();
}

LineReader::End LineReader::Read(std::string& line) {
  return is_terminal_ ? ReadEdited(line) : ReadPlain(line);
}

LineReader::End LineReader::ReadEdited(std::string& line) {
  const InterruptScope interrupt;  // before the prompt is shown: then the user may press Ctrl-C
  std::fflush(stdout);
  edited = {};
  rl_callback_handler_install(kPrompt, TakeEdited);
  while (!edited.is_done) {
    if (!WaitForInput(interrupt)) {
      rl_callback_handler_remove();
      return End::kInterrupted;
    }
    rl_callback_read_char();
  }
  if (!edited.line) {
    rl_callback_handler_remove();
    return End::kInput;
  }
  line = std::move(*edited.line);
  if (!line.empty()) add_history(line.c_str());
  return End::kLine;
}

LineReader::End LineReader::ReadPlain(std::string& line) {
  const InterruptScope interrupt;
  fmt::print(kPrompt);
  std::fflush(stdout);
  while (true) {
    if (const size_t newline = buffer_.find('\n'); newline != std::string::npos) {
      line = buffer_.substr(0, newline);
      buffer_.erase(0, newline + 1);
      if (!line.empty() && line.back() == '\r') line.pop_back();
      return End::kLine;
    }
    if (!WaitForInput(interrupt)) return End::kInterrupted;
    char bytes[4096];
    const ssize_t size = read(STDIN_FILENO, bytes, sizeof bytes);
    if (size > 0) {
      buffer_.append(bytes, static_cast<size_t>(size));
    } else if (size < 0 && errno == EINTR) {
      continue;
    } else if (!buffer_.empty()) {
      buffer_ += '\n';  // the last line may have no newline
    } else {
      return End::kInput;
    }
  }
}

}  // namespace kvasir::cli
