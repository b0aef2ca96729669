// encode: the time that one thread takes to encode a text, for bench/tokenizer_bench.py. Prints one
// JSON line: seconds of each round, and the ids' count and SHA-256 (of 32-bit little-endian ids).
//
// usage: encode FOLDER TEXT_FILE [rounds]     FOLDER has a tokenizer.json
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/digest.h"
#include "base/hex.h"
#include "base/mapped_file.h"
#include "text/tokenizer.h"

namespace kvasir {
namespace {

int Run(std::span<char* const> args) {
  if (args.size() < 3) {
    fmt::print(stderr, "usage: encode FOLDER TEXT_FILE [rounds]\n");
    return 2;
  }
  const std::filesystem::path folder = args[1];
  const auto json = ReadTextFile(folder / "tokenizer.json", uint64_t{1} << 28);
  const auto text = ReadTextFile(args[2], uint64_t{1} << 28);
  if (!json || !text) {
    fmt::print(stderr, "encode: {}\n", (json ? text : json).error().text());
    return 2;
  }
  const auto tokenizer = Tokenizer::Parse(*json, "");
  if (!tokenizer) {
    fmt::print(stderr, "encode: {}\n", tokenizer.error().text());
    return 2;
  }
  std::vector<double> seconds;
  Result<std::vector<TokenId>> ids;
  for (int round = 0, rounds = args.size() > 3 ? std::stoi(args[3]) : 3; round < rounds; ++round) {
    const uint64_t begin_ns = MonotonicNs();
    ids = (*tokenizer)->Encode(*text, {.add_special = false});
    seconds.push_back(static_cast<double>(MonotonicNs() - begin_ns) * 1e-9);
    if (!ids) {
      fmt::print(stderr, "encode: {}\n", ids.error().text());
      return 1;
    }
  }
  const auto* bytes = reinterpret_cast<const char*>(ids->data());
  const std::string_view view(bytes, ids->size() * sizeof(TokenId));
  fmt::print("{{\"seconds\": [{:.4f}], \"ids\": {}, \"sha256\": \"{}\"}}\n",
             fmt::join(seconds, ", "), ids->size(), ToHex(Sha256Of(view)));
  return 0;
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) { return kvasir::Run({argv, static_cast<size_t>(argc)}); }
