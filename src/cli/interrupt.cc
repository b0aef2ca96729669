#include "cli/interrupt.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "cli/command.h"

namespace kvasir::cli {
namespace {

enum State : int { kExit, kWatch, kInterrupted };
// sig_atomic_t, because the signal handler writes it on any thread.
volatile std::sig_atomic_t state = kExit;
int wake[2] = {-1, -1};  // a pipe: the handler writes, fd() reads

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
