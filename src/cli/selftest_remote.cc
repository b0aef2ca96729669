// The checks of selftest that have a store which machines share: that of --remote, and one that
// does not answer.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/hex.h"
#include "base/log.h"
#include "base/random_bytes.h"
#include "base/result.h"
#include "base/secret.h"
#include "cli/selftest_run.h"
#include "cli/temporary_folder.h"

namespace kvasir::cli {
namespace {

// Not each is found: a store that is late is not waited for.
constexpr int kSharedPrompts = 8;

constexpr std::chrono::milliseconds kPause(10);

// Returns the options of a machine with such a store, and with neither a disk nor a model image.
EngineOptions WithRemote(const Lab& lab, const RemoteOptions& remote, std::string state_dir) {
  EngineOptions options = lab.options();
  options.remote = remote;
  options.state_dir = std::move(state_dir);
  options.image_cap_bytes = 0;
  return options;
}

// Waits until the store has answered, or is off, for no longer than this.
RemoteStats StateOf(const Engine& engine, uint64_t most_ns) {
  const uint64_t end_ns = MonotonicNs() + most_ns;
  while (engine.RemoteState()->state == RemoteStats::State::kConnecting && MonotonicNs() < end_ns) {
    std::this_thread::sleep_for(kPause);
  }
  return *engine.RemoteState();
}

// Loads an engine that uses the store, and waits until that has answered.
Result<std::unique_ptr<Engine>> LoadWithRemote(const Lab& lab, const EngineOptions& options) {
  KV_ASSIGN(std::unique_ptr<Engine> engine, lab.Load(options));
  const RemoteStats remote = StateOf(*engine, 60'000'000'000);
  if (remote.state == RemoteStats::State::kOn) return engine;
  return Fail(Code::kUnavailable, "the store {} is off: {}", remote.host, remote.reason);
}

Erasure Erase(Engine& engine, const std::string& tenant) {
  const auto told = std::make_shared<std::promise<Erasure>>();
  engine.Erase(tenant, [told](const Erasure& erasure) { told->set_value(erasure); });
  return told->get_future().get();
}

// Returns whether an engine erases what it has of a prompt in memory, as another one has done. It
// finds that out when it next asks the store, or within 10 s.
Result<bool> ForgetsToo(Engine& engine, Lab& lab, const std::string& tenant, const Tokens& prompt) {
  const uint64_t end_ns = MonotonicNs() + 12'000'000'000;
  for (; MonotonicNs() < end_ns; std::this_thread::sleep_for(kPause)) {
    for (const Tokens& tokens : {lab.RandomTokens(prompt.size()), prompt}) {
      GenerateRequest request = lab.Ask(tokens);
      request.tenant = tenant;
      KV_ASSIGN(const Generated generated, RunAlone(engine, std::move(request)));
      const Receipt& receipt = generated.receipt;
      const bool has_it = receipt.reused_pool + receipt.reused_partial > prompt.size() / 2;
      if (tokens == prompt && !has_it) return true;
    }
  }
  return false;
}

// Logs errors alone while it exists.
class ErrorsOnly {
 public:
  ErrorsOnly() {
    for (const LogLevel level : {LogLevel::kWarning, LogLevel::kInfo, LogLevel::kDebug}) {
      if (IsLogged(level)) before_ = level;
    }
    SetLogLevel(LogLevel::kError);
  }
  ~ErrorsOnly() { SetLogLevel(before_); }
  ErrorsOnly(const ErrorsOnly&) = delete;
  ErrorsOnly& operator=(const ErrorsOnly&) = delete;

 private:
  LogLevel before_ = LogLevel::kError;
};

// A port of this machine that refuses connections while it exists.
class ClosedPort {
 public:
  static Result<ClosedPort> Take() {
    ClosedPort closed;
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(here);
    auto* const address = reinterpret_cast<sockaddr*>(&here);
    if (!closed.socket_ || bind(closed.socket_.fd(), address, size) != 0 ||
        getsockname(closed.socket_.fd(), address, &size) != 0) {
      return Fail(Code::kIoError, "cannot take a port of 127.0.0.1");
    }
    closed.number_ = ntohs(here.sin_port);
    return closed;
  }
  uint16_t number() const { return number_; }

 private:
  ClosedPort() = default;

  Descriptor socket_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  uint16_t number_ = 0;
};

// Lets one engine compute prompts and share them. Checks that others, which have neither its memory
// nor a disk, take them from the store; and that after an erase neither they nor the first find
// any.
Status ShareThroughStore(Lab& lab, Check& check, const std::string& tenant) {
  KV_ASSIGN(const TemporaryFolder folder, TemporaryFolder::Make());
  const auto load = [&](const char* machine) {
    return LoadWithRemote(lab, WithRemote(lab, *lab.remote(), folder.path() / machine));
  };
  std::vector<Tokens> prompts;
  std::vector<Generated> want;
  for (int i = 0; i < kSharedPrompts; ++i) {
    prompts.push_back(i == 0 ? lab.prompt() : lab.RandomTokens(lab.prompt().size()));
    KV_ASSIGN(Generated cold, lab.Cold(lab.engine(), prompts.back()));
    want.push_back(std::move(cold));
  }
  // Returns how many tokens came from the store.
  const auto ask_all = [&](Engine& engine, const std::string& what) -> Result<uint32_t> {
    uint32_t from_store = 0;
    for (size_t i = 0; i < prompts.size(); ++i) {
      GenerateRequest request = lab.Ask(prompts[i]);
      request.tenant = tenant;
      KV_ASSIGN(const Generated generated, RunAlone(engine, std::move(request)));
      check.Compare(want[i], generated, fmt::format("{}, prompt {}", what, i));
      from_store += generated.receipt.reused_remote;
    }
    return from_store;
  };
  KV_ASSIGN(const auto first, load("first"));
  KV_TRY(ask_all(*first, "shared"));
  KV_TRY(Flush(*first));
  KV_ASSIGN(const auto second, load("second"));
  KV_ASSIGN(const uint32_t found, ask_all(*second, "from the store"));
  // One block is not looked for.
  const bool has_blocks = lab.prompt().size() > 2 * size_t{lab.options().block_tokens};
  check.Expect(found > 0 || !has_blocks, "no token came from the store");
  const Erasure erasure = Erase(*second, tenant);
  if (erasure.error) return tl::unexpected(*erasure.error);
  KV_ASSIGN(const auto third, load("third"));
  KV_ASSIGN(const uint32_t left, ask_all(*third, "after an erase"));
  check.Expect(left == 0, fmt::format("after an erase: {} tokens came from the store", left));
  KV_TRY(Flush(*third));
  if (has_blocks && check.first_wrong().empty()) {
    KV_ASSIGN(const bool forgets, ForgetsToo(*first, lab, tenant, prompts[0]));
    check.Expect(forgets, "after an erase: another engine still has a prompt in memory");
    KV_TRY(Flush(*first));
  }
  return {};
}

}  // namespace

// Checks that a store which is off gives nothing, and that an erase which it has not heard of says
// so.
Status Unreached(Lab& lab, Check& check) {
  const ErrorsOnly quiet;
  KV_ASSIGN(const TemporaryFolder folder, TemporaryFolder::Make());
  KV_ASSIGN(const ClosedPort closed, ClosedPort::Take());
  const std::string secret = folder.path() / "fleet";
  KV_TRY(MakeSecret(secret));
  KV_ASSIGN(const auto engine,
            lab.Load(WithRemote(lab,
                                {.url = fmt::format("redis://127.0.0.1:{}", closed.number()),
                                 .ca_file = {},
                                 .fleet_secret = secret},
                                folder.path() / "state")));
  const RemoteStats remote = StateOf(*engine, 3'000'000'000);
  check.Expect(remote.state == RemoteStats::State::kOff && !remote.reason.empty(),
               fmt::format("the store is {}, not off", ToString(remote.state)));
  if (remote.state != RemoteStats::State::kOff) return {};  // each flush would wait for it in vain
  KV_ASSIGN(const Generated generated, RunAlone(*engine, lab.Ask(lab.prompt())));
  check.Compare(lab.reference(), generated, "without an answer of the store");
  check.Expect(generated.receipt.cached_tokens() == 0, "tokens came from a store that is off");
  check.Expect(!Flush(*engine), "a flush that the store has not heard of succeeds");
  check.Expect(Erase(*engine, "default").error.has_value(),
               "an erase that the store has not heard of succeeds");
  return {};
}

// Has engines share prompts under a tenant of this check alone, and removes all that the store has
// of it, however that went.
Status Remote(Lab& lab, Check& check) {
  std::array<uint8_t, 8> random;
  KV_TRY(FillRandom(random));
  const std::string tenant = "selftest-" + ToHex(random);
  const Status shared = ShareThroughStore(lab, check, tenant);
  const Status removed = RemoveFromRemote(*lab.remote(), tenant);
  return shared ? removed : shared;
}

}  // namespace kvasir::cli
