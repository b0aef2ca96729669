// The encoder alone: a step of whole sources of random tokens, and K and V of all decoder layers'
// attention over them.
//
//   encoder_bench MODEL [--sources 16] [--tokens 60] [--threads 2] [--weights i8]
//                 [--decoder-layers N]: only the first N, to see what the encoder takes without
//                 them
//
// For each line of standard input, prints {"seconds"} of such a step, so that another program can
// take turns with it.
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/cpu_topology.h"
#include "base/random.h"
#include "base/result.h"
#include "block/sequence_tables.h"
#include "engine/assembly.h"

namespace kvasir {
namespace {

struct Flags {
  EngineOptions engine;
  uint32_t sources = 16, tokens = 60;
  uint32_t decoder_layers = 0;  // 0: all
};

Status Run(const Flags& flags) {
  EngineOptions options = flags.engine;
  KV_ASSIGN(Assembly assembly, Assemble(options));
  if (!assembly.model.config.encoder) return Fail(Code::kInvalidArgument, "it has no encoder");
  if (flags.decoder_layers != 0) assembly.model.config.num_layers = flags.decoder_layers;
  const uint32_t rows = flags.sources * flags.tokens;
  assembly.runner.max_rows = std::max(assembly.runner.max_rows, rows);
  const KvLayout layout = Runner::LayoutFor(assembly.model.config, assembly.runner);
  const std::vector<uint32_t> cpus = assembly.runner.cpus;
  KV_ASSIGN(const std::unique_ptr<Runner> runner,
            Runner::Create(std::move(assembly.model), assembly.runner, [](double) {}));
  const ComputeScope compute;
  const PinScope pin(cpus);  // the calling thread computes too
  std::vector<SequenceTables> tables;
  std::vector<StepSource> sources;
  for (uint32_t i = 0; i < flags.sources; ++i) {
    KV_ASSIGN(SequenceTables one, SequenceTables::Create(layout, flags.tokens));
    tables.push_back(std::move(one));
  }
  for (uint32_t i = 0; i < flags.sources; ++i) {
    sources.push_back(
        {.tables = tables[i].tables(), .first_row = i * flags.tokens, .num_rows = flags.tokens});
  }
  Random random(20240917);
  std::vector<TokenId> ids(rows);
  for (std::string line; std::getline(std::cin, line);) {
    for (TokenId& id : ids) id = static_cast<TokenId>(random.Below(runner->config().vocab_size));
    const uint64_t begin_ns = MonotonicNs();
    KV_TRY(runner->Encode(sources, ids));
    fmt::print("{{\"seconds\": {:.6f}}}\n", static_cast<double>(MonotonicNs() - begin_ns) * 1e-9);
    std::fflush(stdout);
  }
  return {};
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) {
  kvasir::Flags flags;
  flags.engine.model = argc > 1 ? argv[1] : "";
  flags.engine.threads = 2;
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--sources") flags.sources = static_cast<uint32_t>(std::stoul(value));
    if (name == "--tokens") flags.tokens = static_cast<uint32_t>(std::stoul(value));
    if (name == "--threads") flags.engine.threads = static_cast<uint32_t>(std::stoul(value));
    if (name == "--decoder-layers") {
      flags.decoder_layers = static_cast<uint32_t>(std::stoul(value));
    }
    if (name == "--weights") flags.engine.weights = value;
  }
  const kvasir::Status status = kvasir::Run(flags);
  if (!status) fmt::print(stderr, "encoder_bench: {}\n", status.error().text());
  return status ? 0 : 2;
}
