#include "cli/interrupt.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "cli/command.h"

namespace kvasir::cli {
namespace {

enum State : int { kExit, kWatch, kInterrupted };
// sig_atomic_t, because the signal handler writes it on any thread.
volatile std::sig_atomic_t state = kExit;
int wake[2] = {-1, -1};  // a pipe: the handler writes, fd() reads

const char* last_line = nullptr;  // written before the signals are caught

// Writes the last line, and does only what a signal handler may do. The signal comes again when it
// returns, and then kills.
void OnEnd(int signal) {
  pollfd out{STDERR_FILENO, POLLOUT, 0};
  if (poll(&out, 1, 0) == 1 && (out.revents & POLLOUT) != 0) {
    const ssize_t written = write(STDERR_FILENO, last_line, std::strlen(last_line));
    static_cast<void>(written);
  }
  raise(signal);
}

void OnInterrupt(int) {
  if (state != kWatch) std::_Exit(kExitInterrupted);
  state = kInterrupted;
  const int error = errno;
  const ssize_t written = write(wake[1], "", 1);
  static_cast<void>(written);  // a full pipe is readable too
  errno = error;
}

}  // namespace

void ExitOnInterrupt() {
  if (wake[0] < 0 && pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0)
    return;  // then Ctrl-C just ends the process
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
}

void EndOnSignal(const char* line) {
  last_line = line;
  struct sigaction action = {}, hangup = {};
  action.sa_handler = OnEnd;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  const bool ignored = sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
  if (!ignored) sigaction(SIGHUP, &action, nullptr);
}

InterruptScope::InterruptScope() {
  char byte;
  while (read(wake[0], &byte, 1) > 0) {
  }
  state = kWatch;
}
InterruptScope::~InterruptScope() { state = kExit; }
bool InterruptScope::interrupted() const { return state == kInterrupted; }
int InterruptScope::fd() const { return wake[0]; }

}  // namespace kvasir::cli
