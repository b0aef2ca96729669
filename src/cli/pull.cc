// kvasir pull: fetches a model from a hub into the Hugging Face cache.
#include "hub/pull.h"

#include <fmt/format.h>

#include "base/clock.h"
#include "base/file_name.h"
#include "base/log.h"
#include "base/result.h"
#include "cli/command.h"
#include "cli/hub_model.h"
#include "cli/interrupt.h"
#include "cli/progress.h"

namespace kvasir::cli {
namespace {

// The share that is done and the speed since the first call.
class PullLine {
 public:
  void Show(const std::string& file, uint64_t done_bytes, uint64_t total_bytes) {
    const uint64_t now_ns = MonotonicNs();
    if (!start_ns_) {
      start_ns_ = now_ns;
      start_bytes_ = done_bytes;
    }
    const double seconds = static_cast<double>(now_ns - *start_ns_) * 1e-9;
    const double new_bytes =
        done_bytes > start_bytes_ ? static_cast<double>(done_bytes - start_bytes_) : 0;
    const auto speed = static_cast<uint64_t>(seconds > 0 ? new_bytes / seconds : 0);
    progress_.Show(fmt::format("fetching {}: {} of {}, {}/s", file, FormatBytes(done_bytes),
                               FormatBytes(total_bytes), FormatBytes(speed)));
  }

 private:
  Progress progress_;
  std::optional<uint64_t> start_ns_;
  uint64_t start_bytes_ = 0;
};

Result<int> RunPull(const Args& args) {
  const std::vector<std::string> operands = args.List(kOperands);
  if (operands.empty()) {
    return Fail(Code::kInvalidArgument, "which model? give {}", hub::kRepoForm);
  }
  KV_ASSIGN(const hub::RepoRef ref, RequireRepoRef(operands.front()));
  KV_ASSIGN(const hub::HubSettings settings, hub::ReadHubSettings());
  if (!settings.warning.empty()) Log(LogLevel::kWarning, settings.warning);
  ExitOnInterrupt();
  Result<hub::PulledModel> pulled = [&] {
    PullLine line;
    return hub::Pull(settings, ref,
                     {[&](const std::string& file, uint64_t done, uint64_t total) {
                        line.Show(Printable(file), done, total);
                      },
                      WaitNotice(ref),
                      [&](const std::string& reason) {
                        Log(LogLevel::kWarning,
                            settings.endpoint + ": " + reason + "; trying again, 4 times at most");
                      }});
  }();
  if (!pulled) return tl::unexpected(std::move(pulled).error());
  fmt::print("{} at {}: {}, {}, of which {} were fetched now\n{}\n", ref.Text(),
             pulled->commit.substr(0, 12), FileCount(pulled->num_files),
             FormatBytes(pulled->total_bytes), FormatBytes(pulled->fetched_bytes),
             pulled->path.string());
  fmt::print("run it: kvasir chat --model {}\n", ref.Text());
  return kExitDone;
}

}  // namespace

Command PullCommand() {
  return {
      "pull",
      "fetches a model from huggingface.co into the Hugging Face cache",
      "pull Qwen/Qwen3-0.6B-GGUF:Q8_0",
      {},
      RunPull,
      "The argument is owner/name[@revision][:file or quant]. It fetches one GGUF file (all its "
      "parts), or the safetensors and what belongs to them. Without a choice: the only model, "
      "else the Q4_K_M. A pull that was interrupted goes on where it ended. Environment, as for "
      "Hugging Face's tools: HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE; for "
      "certificates SSL_CERT_FILE; for proxies https_proxy and no_proxy.",
      1};
}

}  // namespace kvasir::cli
