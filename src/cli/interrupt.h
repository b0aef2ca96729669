// Ctrl-C: ends the process with status 130, or, inside an InterruptScope, asks the work to stop.
#pragma once

namespace kvasir::cli {

// Outside of scopes Ctrl-C exits at once, whatever runs (a model that loads, say). Not for `serve`,
// whose server owns the signal.
void ExitOnInterrupt();

// While it lives the first Ctrl-C only sets a flag and makes fd() readable; the second exits. One
// at a time.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  bool interrupted() const;
  // For poll() beside what is waited for: a flag alone may be set just before the wait begins.
  int fd() const;
};

}  // namespace kvasir::cli
