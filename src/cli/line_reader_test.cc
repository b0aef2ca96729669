#include "cli/line_reader.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <pty.h>
#include <sys/ioctl.h>

#include <array>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "cli/interrupt.h"
#include "cli/standard_streams_for_test.h"

namespace kvasir::cli {
namespace {

using End = LineReader::End;

struct LinesRead {
  std::vector<std::string> lines;
  End end = End::kLine;  // of the last Read
  bool is_terminal = true;
  std::string shown;  // on standard output
};

// Returns all lines up to the end of the input.
LinesRead ReadAll(const Pipe& input) {
  LinesRead read;
  Pipe output;
  {
    const Redirected in(STDIN_FILENO, input.read_end.fd());
    const Redirected out(STDOUT_FILENO, output.write_end.fd());
    LineReader reader({});
    read.is_terminal = reader.is_terminal();
    std::string line;
    while ((read.end = reader.Read(line)) == End::kLine) read.lines.push_back(line);
  }
  output.CloseWriteEnd();
  char bytes[4096];
  for (ssize_t size; (size = ::read(output.read_end.fd(), bytes, sizeof bytes)) > 0;) {
    read.shown.append(bytes, static_cast<size_t>(size));
  }
  return read;
}

std::vector<std::string> LinesIn(std::string_view text) {
  const LinesRead read = ReadAll(PipeOf(text));
  EXPECT_EQ(read.end, End::kInput);
  return read.lines;
}

using Lines = std::vector<std::string>;

TEST(LineReader, EachLineOfAPipeHasAPrompt) {
  const LinesRead read = ReadAll(PipeOf("a\nb\n"));
  EXPECT_EQ(read.lines, (Lines{"a", "b"}));
  EXPECT_EQ(read.end, End::kInput);
  EXPECT_FALSE(read.is_terminal);
  EXPECT_EQ(read.shown, "> > > ");
}

TEST(LineReader, LinesEndWithLfOrCrLfAndTheLastOneNeedsNoEnd) {
  EXPECT_EQ(LinesIn(""), Lines{});
  EXPECT_EQ(LinesIn("a\r\n\n\r\nlast"), (Lines{"a", "", "", "last"}));
  EXPECT_EQ(LinesIn("a\n\n"), (Lines{"a", ""}));
  EXPECT_EQ(LinesIn("a\r"), Lines{"a"});
  EXPECT_EQ(LinesIn("a\rb\r\r\n"), Lines{"a\rb\r"});
}

TEST(LineReader, BytesOfAnyKindAndLinesOfAnyLengthStayAsTheyAre) {
  using namespace std::string_literals;
  EXPECT_EQ(LinesIn("a\0\xff\x1b[A\t\n"s), Lines{"a\0\xff\x1b[A\t"s});
  const std::string large(20'000, 'x'), block(4095, 'y');
  EXPECT_EQ(LinesIn(large + "\n" + block + "\nz"), (Lines{large, block, "z"}));
}

TEST(LineReader, AfterItsEndTheInputStaysAtItsEnd) {
  const Pipe input = PipeOf("a");
  const Pipe output;
  End ends[3];
  std::string line;
  {
    const Redirected in(STDIN_FILENO, input.read_end.fd());
    const Redirected out(STDOUT_FILENO, output.write_end.fd());
    LineReader reader({});
    for (End& end : ends) end = reader.Read(line);
  }
  EXPECT_EQ(ends[0], End::kLine);
  EXPECT_EQ(ends[1], End::kInput);
  EXPECT_EQ(ends[2], End::kInput);
  EXPECT_EQ(line, "a");  // an end leaves it
}

TEST(LineReader, ALineMayComeInPieces) {
  Pipe input;
  std::thread writer([&] {
    input.Write("hel");
    int waiting = 1;
    while (waiting > 0) ioctl(input.read_end.fd(), FIONREAD, &waiting);
    input.Write("lo\nw");
    input.CloseWriteEnd();
  });
  const LinesRead read = ReadAll(input);
  writer.join();
  EXPECT_EQ(read.lines, (Lines{"hello", "w"}));
}

// The prompt shows that Ctrl-C no longer ends the process.
TEST(LineReader, ControlCEndsTheWaitAndTheNextLineIsReadAsUsual) {
  struct sigaction before;
  ASSERT_EQ(sigaction(SIGINT, nullptr, &before), 0);
  ExitOnInterrupt();
  Pipe input;
  const Pipe output;
  char prompt = 0;
  std::thread user([&, reading = pthread_self()] {
    EXPECT_EQ(read(output.read_end.fd(), &prompt, 1), 1);
    pthread_kill(reading, SIGINT);
  });
  End interrupted = End::kLine, next = End::kInput;
  std::string line = "before", kept;
  {
    const Redirected in(STDIN_FILENO, input.read_end.fd());
    const Redirected out(STDOUT_FILENO, output.write_end.fd());
    LineReader reader({});
    interrupted = reader.Read(line);
    user.join();
    kept = line;
    input.Write("after\n");
    next = reader.Read(line);
  }
  sigaction(SIGINT, &before, nullptr);
  EXPECT_EQ(prompt, '>');
  EXPECT_EQ(interrupted, End::kInterrupted);
  EXPECT_EQ(kept, "before");
  EXPECT_EQ(next, End::kLine);
  EXPECT_EQ(line, "after");
}

// Reads lines from a terminal whose user waits for each prompt, then presses the next keys; the
// keys "\x03" stand for Ctrl-C, which sends a signal if the terminal is the process's own.
LinesRead ReadTerminal(const std::vector<std::string>& keys) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr), 0);
  const Descriptor user_end(ends[0]), program_end(ends[1]);
  constexpr std::string_view kMark = "[next]";
  LinesRead result;
  std::thread user([&, reading = pthread_self()] {
    for (const std::string& pressed : keys) {
      const size_t begin = result.shown.size();
      // Editing may show the prompt again: only the one after the mark is the next line's.
      const auto waits = [&] {
        const size_t mark = result.shown.find(kMark, begin);
        return mark == std::string::npos || result.shown.find("> ", mark) == std::string::npos;
      };
      while (waits()) {
        char bytes[4096];
        const ssize_t size = read(user_end.fd(), bytes, sizeof bytes);
        if (size <= 0) return;
        result.shown.append(bytes, static_cast<size_t>(size));
      }
      if (pressed == "\x03") {
        pthread_kill(reading, SIGINT);
      } else if (write(user_end.fd(), pressed.data(), pressed.size()) < 0) {
        return;
      }
    }
  });
  {
    const Redirected in(STDIN_FILENO, program_end.fd());
    const Redirected out(STDOUT_FILENO, program_end.fd());
    constexpr std::array<std::string_view, 3> kWords = {"/help", "/history", "/list"};
    LineReader reader(kWords);
    result.is_terminal = reader.is_terminal();
    std::string line;
    for (size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(write(STDOUT_FILENO, kMark.data(), kMark.size()), ssize_t{kMark.size()});
      result.end = reader.Read(line);
      result.lines.push_back(result.end == End::kLine          ? line
                             : result.end == End::kInterrupted ? "(interrupted)"
                                                               : "(end)");
    }
  }
  user.join();
  return result;
}

TEST(LineReader, ATerminalsLinesAreEditedCompletedAndComeAgain) {
  const std::string locale = std::setlocale(LC_CTYPE, nullptr);
  setenv("TERM", "xterm", 1);
  struct sigaction before;
  ASSERT_EQ(sigaction(SIGINT, nullptr, &before), 0);
  ExitOnInterrupt();
  const LinesRead read = ReadTerminal({"Where does Anna liv?\x1b[De\r",  // left, a letter
                                       "\x1b[A\r",                       // up
                                       "/li\t\r", "/li /li\t\r", "\t\r",
                                       "k\xc3\xa9ks\x7f\x7f\x7f\r", "\x03", "\r", "\x04"});
  sigaction(SIGINT, &before, nullptr);
  std::setlocale(LC_CTYPE, locale.c_str());
  EXPECT_TRUE(read.is_terminal);
  EXPECT_EQ(read.lines, (Lines{"Where does Anna live?", "Where does Anna live?", "/list ",
                               "/li /li", "", "k", "(interrupted)", "", "(end)"}));
}

}  // namespace
}  // namespace kvasir::cli
