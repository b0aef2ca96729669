// The check of selftest that has a store which machines share: that of --remote.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "base/hex.h"
#include "base/random_bytes.h"
#include "base/result.h"
#include "cli/selftest_run.h"
#include "cli/temporary_folder.h"

namespace kvasir::cli {
namespace {

// Not each is found: a store that is late is not waited for.
constexpr int kSharedPrompts = 8;

// Loads an engine that uses the store, and waits until that has answered.
Result<std::unique_ptr<Engine>> LoadWithRemote(const Lab& lab, const EngineOptions& options) {
  KV_ASSIGN(std::unique_ptr<Engine> engine, lab.Load(options));
  while (engine->RemoteState()->state == RemoteStats::State::kConnecting) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const RemoteStats remote = *engine->RemoteState();
  if (remote.state == RemoteStats::State::kOn) return engine;
  return Fail(Code::kUnavailable, "the store {} is off: {}", remote.host, remote.reason);
}

}  // namespace

// One engine computes prompts and shares them. Others, which have neither its memory nor a disk,
// take them from the store; after an erase they find nothing.
Status Remote(Lab& lab, Check& check) {
  KV_ASSIGN(const TemporaryFolder folder, TemporaryFolder::Make());
  EngineOptions options = lab.options();
  options.remote = lab.remote();
  options.state_dir = folder.path() / "state";
  options.image_cap_bytes = 0;
  std::array<uint8_t, 8> random;
  KV_TRY(FillRandom(random));
  const std::string tenant = "selftest-" + ToHex(random);
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
  {
    KV_ASSIGN(const auto first, LoadWithRemote(lab, options));
    KV_TRY(ask_all(*first, "shared"));
    KV_TRY(Flush(*first));
  }
  KV_ASSIGN(const auto second, LoadWithRemote(lab, options));
  KV_ASSIGN(const uint32_t found, ask_all(*second, "from the store"));
  // One block is not looked for.
  const bool has_blocks = lab.prompt().size() > 2 * size_t{lab.options().block_tokens};
  check.Expect(found > 0 || !has_blocks, "no token came from the store");
  const auto told = std::make_shared<std::promise<Erasure>>();
  second->Erase(tenant, [told](const Erasure& erasure) { told->set_value(erasure); });
  const Erasure erasure = told->get_future().get();
  if (erasure.error) return tl::unexpected(*erasure.error);
  KV_ASSIGN(const auto third, LoadWithRemote(lab, options));
  KV_ASSIGN(const uint32_t left, ask_all(*third, "after an erase"));
  check.Expect(left == 0, fmt::format("after an erase: {} tokens came from the store", left));
  KV_TRY(Flush(*third));
  third->Erase(tenant);
  return {};
}

}  // namespace kvasir::cli
