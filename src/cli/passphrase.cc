#include "cli/passphrase.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string_view>

#include "base/descriptor.h"
#include "base/result.h"
#include "base/wipe.h"

namespace kvasir::cli {
namespace {

constexpr const char* kVariable = "KVASIR_BACKUP_PASSPHRASE";

std::string FirstLine(std::string_view text) {
  std::string line(text.substr(0, text.find('\n')));
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

Result<std::string> ReadFromFile(const std::string& path) {
  struct stat about;
  if (stat(path.c_str(), &about) == 0 && S_ISREG(about.st_mode) && (about.st_mode & 077) != 0) {
    return FailField(Code::kInvalidArgument, "passphrase-file",
                     "{} has mode {:04o}, so other users can read or change it; chmod 600 it", path,
                     about.st_mode & 07777);
  }
  KV_ASSIGN(std::string text, ReadFlagFile("passphrase-file", path, "a text file"));
  std::string line = FirstLine(text);
  Wipe(&text);
  if (!line.empty()) return line;
  return FailField(Code::kInvalidArgument, "passphrase-file", "{} begins with an empty line", path);
}

constexpr std::array kEndingSignals = {SIGINT, SIGTERM, SIGQUIT, SIGHUP};
volatile std::sig_atomic_t signal_at_prompt = 0;

// Holds back the signals that end the process, as long as it lives; one that came is raised at its
// end.
class HeldSignals {
 public:
  HeldSignals() {
    signal_at_prompt = 0;
    struct sigaction action = {};
    action.sa_handler = [](int signal) { signal_at_prompt = signal; };
    sigset_t held;
    sigemptyset(&held);
    for (const int signal : kEndingSignals) sigaddset(&held, signal);
    pthread_sigmask(SIG_BLOCK, &held, &mask_before_);
    for (size_t i = 0; i < kEndingSignals.size(); ++i) {
      sigaction(kEndingSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler != SIG_IGN) sigaction(kEndingSignals[i], &action, nullptr);
    }
  }
  ~HeldSignals() {
    for (size_t i = 0; i < kEndingSignals.size(); ++i) {
      sigaction(kEndingSignals[i], &before_[i], nullptr);
    }
    pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
    if (signal_at_prompt != 0) raise(signal_at_prompt);
  }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  // Waits for bytes to read. False: a signal came.
  bool Await(int fd) const {
    pollfd input{fd, POLLIN, 0};
    while (signal_at_prompt == 0) {
      if (ppoll(&input, 1, nullptr, &mask_before_) >= 0 || errno != EINTR) break;
    }
    return signal_at_prompt == 0;
  }

 private:
  std::array<struct sigaction, kEndingSignals.size()> before_{};
  sigset_t mask_before_{};
};

// The terminal without its echo, as long as it lives.
class SilentTerminal {
 public:
  explicit SilentTerminal(int fd) : fd_(fd), is_set_(tcgetattr(fd, &before_) == 0) {
    if (!is_set_) return;
    termios silent = before_;
    silent.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    tcsetattr(fd_, TCSAFLUSH, &silent);
  }
  ~SilentTerminal() {
    if (is_set_) tcsetattr(fd_, TCSAFLUSH, &before_);
  }
  SilentTerminal(const SilentTerminal&) = delete;
  SilentTerminal& operator=(const SilentTerminal&) = delete;

 private:
  const int fd_;
  termios before_{};
  const bool is_set_;
};

std::string AskAt(int terminal, std::string_view question) {
  const HeldSignals signals;  // outlives what sets the terminal back
  const SilentTerminal silent(terminal);
  (void)!write(terminal, question.data(), question.size());
  std::string line;
  char c = 0;
  while (signals.Await(terminal) && read(terminal, &c, 1) == 1 && c != '\n') line += c;
  if (signal_at_prompt != 0) Wipe(&line);
  (void)!write(terminal, "\n", 1);
  return line;
}

}  // namespace

Result<std::string> ReadPassphrase(const Args& args, Passphrase which) {
  if (const auto path = args.Text("passphrase-file")) return ReadFromFile(*path);
  if (const char* const value = std::getenv(kVariable); value != nullptr && *value != '\0') {
    return std::string(value);
  }
  const Descriptor terminal(open("/dev/tty", O_RDWR | O_CLOEXEC));
  if (!terminal || isatty(STDIN_FILENO) == 0) {
    return Fail(Code::kInvalidArgument,
                "a backup has a passphrase: give it with --passphrase-file FILE or in the variable "
                "{}, or run this at a terminal",
                kVariable);
  }
  std::string typed = AskAt(terminal.fd(), "passphrase of the backup: ");
  if (which == Passphrase::kKnown) return typed;
  std::string again = AskAt(terminal.fd(), "once more: ");
  const bool are_equal = typed == again;
  Wipe(&again);
  if (are_equal) return typed;
  Wipe(&typed);
  return Fail(Code::kInvalidArgument, "the two passphrases differ; nothing was written");
}

Flag PassphraseFlag() {
  return {"passphrase-file", "FILE",
          "its first line is the passphrase (default: the variable KVASIR_BACKUP_PASSPHRASE, else "
          "asked for at the terminal)"};
}

}  // namespace kvasir::cli
