// kvasir pull: fetches a model from a hub into the Hugging Face cache.
#include "hub/pull.h"

#include <fmt/format.h>

#include "base/result.h"
#include "cli/command.h"
#include "cli/hub_model.h"

namespace kvasir::cli {
namespace {

Result<int> RunPull(const Args& args) {
  const std::vector<std::string> operands = args.List(kOperands);
  if (operands.empty()) {
    return Fail(Code::kInvalidArgument, "which model? give {}", hub::kRepoForm);
  }
  KV_ASSIGN(const hub::RepoRef ref, RequireRepoRef(operands.front()));
  KV_ASSIGN(const hub::PulledModel pulled, PullModel(ref));
  fmt::print("{} at {}: {}, {}, of which {} were fetched now\n{}\n", ref.Text(),
             pulled.commit.substr(0, 12), FileCount(pulled.num_files),
             FormatBytes(pulled.total_bytes), FormatBytes(pulled.fetched_bytes),
             pulled.path.string());
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
      1,
      {},
      {},
      "MODEL"};
}

}  // namespace kvasir::cli
