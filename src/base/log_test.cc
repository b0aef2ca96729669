#include "base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <string>
#include <utility>

#include "base/own_clock.h"

namespace kvasir {
namespace {

constexpr int kPipeBytes = 4096;

// Returns the exit status of a child that runs `body` with `fd` as standard error; -1: a signal
// ended it.
// A child process, because the log checks standard error only once.
int InChild(int fd, const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    dup2(fd, STDERR_FILENO);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

struct Pipe {
  Pipe() {
    EXPECT_EQ(pipe(ends), 0);
    EXPECT_EQ(fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes), kPipeBytes);
  }
  ~Pipe() {
    close(ends[0]);
    close(ends[1]);
  }
  std::string Read() {
    char text[2 * kPipeBytes];
    const ssize_t bytes = read(ends[0], text, sizeof(text));
    return {text, bytes > 0 ? static_cast<size_t>(bytes) : 0};
  }
  int ends[2];
};

TEST(Log, WritesLinesAsTheyAreMade) {
  Pipe pipe;
  EXPECT_EQ(InChild(pipe.ends[1],
                    [] {
                      LogText("one 1\n");
                      LogText("two\nthree\n");
                      return static_cast<int>(LogLinesDropped());
                    }),
            0);
  EXPECT_EQ(pipe.Read(), "one 1\ntwo\nthree\n");
}

TEST(Log, DropsAndCountsWhatAFullPipeDoesNotTake) {
  Pipe pipe;
  const std::string line(99, 'x');
  EXPECT_EQ(InChild(pipe.ends[1],
                    [&] {
                      for (int i = 0; i < 60; ++i) LogText(line + "\n");
                      return static_cast<int>(LogLinesDropped());
                    }),
            60 - kPipeBytes / 100);
  EXPECT_EQ(pipe.Read().size(), kPipeBytes / 100 * 100u) << "whole lines only";
  EXPECT_EQ(fcntl(pipe.ends[1], F_GETFL) & O_NONBLOCK, 0) << "others who write there still wait";
}

TEST(Log, GoesOnWhenThereIsRoomAgain) {
  Pipe pipe;
  EXPECT_EQ(InChild(pipe.ends[1],
                    [&] {
                      LogText(std::string(kPipeBytes - 1, 'x') + "\n");
                      LogText("lost\n");
                      pipe.Read();
                      LogText("kept\n");
                      return static_cast<int>(LogLinesDropped());
                    }),
            1);
  EXPECT_EQ(pipe.Read(), "kept\n");
}

TEST(Log, ALineThatWasTornEndsBeforeTheNext) {
  Pipe pipe;
  EXPECT_EQ(InChild(pipe.ends[1],
                    [&] {
                      LogText(std::string(2 * kPipeBytes, 'x') + "\n");  // more than the pipe holds
                      pipe.Read();
                      LogText("next\n");
                      return static_cast<int>(LogLinesDropped());
                    }),
            1);
  EXPECT_EQ(pipe.Read(), "\nnext\n");
}

TEST(Log, APipeWithoutReaderOnlyDropsLines) {
  Pipe pipe;
  close(std::exchange(pipe.ends[0], -1));
  EXPECT_EQ(InChild(pipe.ends[1],
                    [] {
                      IgnoreBrokenPipes();
                      LogText("one\n");
                      LogText("two\n");
                      return static_cast<int>(LogLinesDropped());
                    }),
            2);
}

TEST(Log, AFullDeviceOnlyDropsLines) {
  const int full = open("/dev/full", O_WRONLY);
  const auto two_lines = [] {
    LogText("one\ntwo\n");
    return static_cast<int>(LogLinesDropped());
  };
  EXPECT_EQ(InChild(full, two_lines), 2);
  close(full);
}

TEST(Log, ASocketThatNobodyReadsOnlyDropsLines) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  EXPECT_EQ(InChild(ends[1],
                    [] {
                      const std::string line(1000, 'x');
                      for (int i = 0; i < 10000; ++i) LogText(line + "\n");
                      return LogLinesDropped() > 0 ? 0 : 1;
                    }),
            0);
  close(ends[0]);
  close(ends[1]);
}

TEST(Log, ALineHasItsLevelItsMessageAndItsFields) {
  Pipe pipe;
  EXPECT_EQ(
      InChild(pipe.ends[1],
              [] {
                Log(LogLevel::kInfo, "plain");
                Log(LogLevel::kWarning, "closed", LogField("count", 3), LogField("kept", 2.5));
                Log(LogLevel::kError, "gone", LogField("reason", "no memory"),
                    LogField("path", "a=b"), LogField("name", "say \"x\""), LogField("empty", ""));
                return 0;
              }),
      0);
  EXPECT_EQ(pipe.Read(),
            "kvasir: plain\n"
            "kvasir: warning: closed count=3 kept=2.5\n"
            "kvasir: error: gone reason=\"no memory\" path=\"a=b\" name=\"say \\\"x\\\"\" "
            "empty=\"\"\n");
}

TEST(Log, LinesBeyondTheLevelAreNotWritten) {
  for (const auto& [level, lines] : {std::pair(LogLevel::kError, 1),
                                     {LogLevel::kWarning, 2},
                                     {LogLevel::kInfo, 3},
                                     {LogLevel::kDebug, 4}}) {
    Pipe pipe;
    EXPECT_EQ(InChild(pipe.ends[1],
                      [level = level] {
                        SetLogLevel(level);
                        for (const LogLevel of : {LogLevel::kError, LogLevel::kWarning,
                                                  LogLevel::kInfo, LogLevel::kDebug}) {
                          Log(of, "x");
                        }
                        return IsLogged(level) ? 0 : 1;
                      }),
              0);
    EXPECT_EQ(std::ranges::count(pipe.Read(), '\n'), lines);
  }
}

TEST(Log, WhatTheWorldNamesMakesNoLines) {
  Pipe pipe;
  EXPECT_EQ(InChild(pipe.ends[1],
                    [] {
                      Log(LogLevel::kInfo, "a\nb\x1b[31m \xc3\xa9", LogField("path", "c\rd\x7f"));
                      return 0;
                    }),
            0);
  EXPECT_EQ(pipe.Read(), "kvasir: a?b?[31m \xc3\xa9 path=c?d?\n");
}

TEST(Log, AServersLineBeginsWithTheTime) {
  Pipe pipe;
  EXPECT_EQ(InChild(pipe.ends[1],
                    [] {
                      OwnClock clock;
                      clock.SetUnixNs(1'700'000'000'042'000'000);
                      SetLogStyle(LogStyle::kServer);
                      Log(LogLevel::kWarning, "x");
                      return 0;
                    }),
            0);
  EXPECT_EQ(pipe.Read(), "2023-11-14T22:13:20.042Z warning: x\n");
}

TEST(StandardDescriptors, ThoseThatAreClosedLeadNowhere) {
  for (int closed = 1; closed < 8; ++closed) {
    const int status = InChild(STDERR_FILENO, [&] {
      for (int fd = 0; fd < 3; ++fd) {
        if (closed >> fd & 1) close(fd);
      }
      if (!FillStandardDescriptors()) return 1;
      if (open("/dev/null", O_RDONLY) < 3) return 2;
      if (closed & 1 && read(STDIN_FILENO, &closed, 1) != 0) return 3;
      if (closed & 2 && write(STDOUT_FILENO, "x", 1) != -1) return 4;  // must fail: no one reads it
      if (closed & 4 && write(STDERR_FILENO, "x", 1) != -1) return 5;
      return 0;
    });
    EXPECT_EQ(status, 0) << closed;
  }
}

}  // namespace
}  // namespace kvasir
