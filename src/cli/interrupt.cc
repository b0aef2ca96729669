#include "cli/interrupt.h"

#include <csignal>
#include <cstdlib>

#include "cli/command.h"

namespace kvasir::cli {
namespace {

enum State : int { kExit, kWatch, kInterrupted };
// sig_atomic_t: written by the handler on whatever thread the signal reaches.
volatile std::sig_atomic_t state = kExit;

void OnInterrupt(int) {
  if (state != kWatch) std::_Exit(kExitInterrupted);
  state = kInterrupted;
}

}  // namespace

void ExitOnInterrupt() {
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;  // no SA_RESTART: a read of the terminal must return
  sigaction(SIGINT, &action, nullptr);
}

InterruptScope::InterruptScope() { state = kWatch; }
InterruptScope::~InterruptScope() { state = kExit; }
bool InterruptScope::interrupted() const { return state == kInterrupted; }

}  // namespace kvasir::cli
