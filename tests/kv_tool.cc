// kv_tool MODEL ID,ID,...: K (after RoPE) and V of a prompt in f32 blocks, for the
// golden tests. To stdout: u32 layers, kv_heads, tokens, head_dim, then f32
// [layer][k|v][kv_head][token][head_dim].
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "block/sequence_tables.h"
#include "format/pack.h"
#include "import/importer.h"
#include "model/runner.h"

namespace kvasir {
namespace {

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "kv_tool: %s\n", message.c_str());
  std::exit(1);
}

std::vector<TokenId> ParseIds(const char* text) {
  std::vector<TokenId> ids;
  for (char* end = nullptr; *text != '\0'; text = *end == ',' ? end + 1 : end) {
    ids.push_back(static_cast<TokenId>(std::strtol(text, &end, 10)));
    if (end == text) Die("ids: numbers with commas between");
  }
  return ids;
}

// Returns the element (head, token, dim) of a layer's K or V.
float At(const KvLayout& groups, const SequenceTables& blocks, uint32_t model_layer, bool is_key,
         uint32_t head, uint32_t token, uint32_t dim) {
  const auto [group, layer] = groups.place(model_layer);
  const BlockLayout& layout = groups.layout(group);
  const uint32_t n = layout.block_tokens(), t = token % n, lane = t % kRunTokens;
  const uint64_t run = uint64_t{head} * (n / kRunTokens) + t / kRunTokens;
  const BlockPart& part = is_key ? layout.key(layer) : layout.value(layer);
  const std::byte* numbers = blocks[group].bases()[token / n] + part.offset + run * part.run_bytes;
  return is_key ? KeyNumber(part.format, numbers, lane, dim)
                : ValueNumber(part.format, layout.shape().head_dim, numbers, lane, dim);
}

void Print(const KvLayout& layout, const SequenceTables& blocks, uint32_t tokens) {
  const BlockShape& shape = layout.layout(0).shape();
  const uint32_t header[] = {layout.num_layers(), shape.kv_heads, tokens, shape.head_dim};
  std::fwrite(header, sizeof(uint32_t), 4, stdout);
  for (uint32_t layer = 0; layer < layout.num_layers(); ++layer) {
    for (bool is_key : {true, false}) {
      for (uint32_t head = 0; head < shape.kv_heads; ++head) {
        for (uint32_t token = 0; token < tokens; ++token) {
          for (uint32_t dim = 0; dim < shape.head_dim; ++dim) {
            const float value = At(layout, blocks, layer, is_key, head, token, dim);
            std::fwrite(&value, sizeof value, 1, stdout);
          }
        }
      }
    }
  }
}

void Run(const char* path, const std::vector<TokenId>& ids) {
  auto model = ImportModel(path);
  if (!model) Die(model.error().message);
  const uint32_t tokens = static_cast<uint32_t>(ids.size());
  RunnerOptions options;
  options.kv_format = KvFormat::kF32;
  options.max_rows = tokens;
  options.max_positions = tokens;
  auto runner = Runner::Create(std::move(*model), options, {});
  if (!runner) Die(runner.error().message);
  const KvLayout layout = Runner::LayoutFor((*runner)->config(), options);
  const auto blocks = SequenceTables::Create(layout, tokens);
  if (!blocks) Die(blocks.error().message);
  EnterComputeThread();
  const StepSequence sequence{.tables = blocks->tables(),
                              .position = 0,
                              .first_row = 0,
                              .num_rows = tokens,
                              .long_rope = UsesLongFactors((*runner)->config().rope, tokens)};
  if (auto status = (*runner)->Step({&sequence, 1}, ids); !status) Die(status.error().message);
  Print(layout, *blocks, tokens);
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: kv_tool MODEL ID,ID,...\n");
    return 2;
  }
  kvasir::Run(argv[1], kvasir::ParseIds(argv[2]));
  return 0;
}
