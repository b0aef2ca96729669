#include "observe/span_exporter.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <regex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/descriptor.h"
#include "base/log.h"
#include "base/own_clock.h"

namespace kvasir {
namespace {

using std::chrono::seconds;

// A port of this machine at which no program listens while this object exists.
class SilentPort {
 public:
  SilentPort() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in here{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(here);
    KV_CHECK(bind(socket_.fd(), reinterpret_cast<sockaddr*>(&here), size) == 0);
    KV_CHECK(getsockname(socket_.fd(), reinterpret_cast<sockaddr*>(&here), &size) == 0);
    port_ = std::to_string(ntohs(here.sin_port));
  }
  const std::string& port() const { return port_; }

 private:
  const Descriptor socket_;
  std::string port_;
};

// Returns as many spans as are sent at once, so that nothing waits for a second to pass.
TracedRequest WholeBatch() {
  TracedRequest request{.root = {1}, .id = "cmpl-1", .model_name = "m"};
  request.trace.submitted_ns = 1;
  request.trace.ended_ns = 2;
  request.trace.allocations.resize(SpanExporter::kMaxBatch);
  return request;
}

// Sends a batch to a collector that is gone after each of `pauses`, and writes a line with a dot
// once it has failed. Returns an exit status: 0 if nothing was sent or dropped.
int SendBatches(std::span<const seconds> pauses) {
  const SilentPort gone;
  OwnClock clock;
  const auto exporter =
      SpanExporter::Start({.host = "127.0.0.1", .port = gone.port(), .path = "/v1/traces"}, {});
  if (!exporter) return 2;
  uint64_t failed = 0;
  for (const seconds pause : pauses) {
    clock.Advance(pause);
    TracedRequest request = WholeBatch();
    failed += NumSpans(request.trace);
    (*exporter)->Add(std::move(request));
    for (SpanCounts now; now.failed < failed && now.sent + now.dropped == 0;) {
      std::this_thread::yield();
      now = (*exporter)->counts();
    }
    LogText(".\n");
  }
  const SpanCounts counts = (*exporter)->counts();
  return counts.sent == 0 && counts.dropped == 0 ? 0 : 1;
}

TEST(SpanExporter, ACollectorThatIsGoneIsOneWarningAMinute) {
  constexpr auto kPauses =
      std::to_array<seconds>({seconds(0), seconds(0), seconds(59), seconds(1), seconds(0),
                              seconds(3600), seconds(0), seconds(60)});
  std::FILE* const log = std::tmpfile();
  ASSERT_NE(log, nullptr);
  // A child process, because the log checks standard error only once.
  const pid_t child = fork();
  if (child == 0) {
    dup2(fileno(log), STDERR_FILENO);
    _exit(SendBatches(kPauses));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  std::string text(1 << 16, '\0');
  const ssize_t bytes = pread(fileno(log), text.data(), text.size(), 0);
  std::fclose(log);
  ASSERT_GT(bytes, 0);
  text.resize(static_cast<size_t>(bytes));
  // Each warning as a W, in order with the dots.
  const std::regex warning(
      "kvasir: warning: spans were not sent reason=\"http://127\\.0\\.0\\.1:[0-9]+/v1/traces: "
      "Connection refused\"\n");
  text = std::regex_replace(text, warning, "W");
  std::erase(text, '\n');
  EXPECT_EQ(text, "W...W..W..W.");
}

}  // namespace
}  // namespace kvasir
