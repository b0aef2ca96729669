// Ctrl-C: ends the process with status 130, or, inside an InterruptScope, asks the work to stop.
#pragma once

namespace kvasir::cli {

// Makes that outside of scopes Ctrl-C exits at once, even while a model loads. Not for `serve`,
// whose server handles the signal.
void ExitOnInterrupt();

// Lets SIGINT, SIGTERM and SIGHUP end the process at once from now on, after writing `line` to
// stderr. `line` must outlive the process's end. An ignored SIGHUP stays ignored.
void EndOnSignal(const char* line);

// While it exists, the first Ctrl-C only sets a flag and makes fd() readable; the second one exits.
// At most one exists at a time.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  bool interrupted() const;
  // Returns a descriptor for poll(), together with the awaited descriptor: the flag alone could be
  // set just before the wait begins.
  int fd() const;
};

}  // namespace kvasir::cli
