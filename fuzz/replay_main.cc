// Runs fuzz targets over the files of their committed corpora, as an ordinary test:
// fuzz_replay NAME CORPUS [NAME CORPUS ...]. Each target is compiled with its own name
// (fuzz/CMakeLists.txt); fuzz_targets.inc lists them.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#define FUZZ_TARGET(name) extern "C" int Fuzz_##name(const uint8_t* data, size_t size);
#include "fuzz_targets.inc"
#undef FUZZ_TARGET

namespace {

using Target = int (*)(const uint8_t*, size_t);

// nullptr: no target has this name.
Target FindTarget(std::string_view wanted) {
#define FUZZ_TARGET(name) \
  if (wanted == #name) return Fuzz_##name;
#include "fuzz_targets.inc"
#undef FUZZ_TARGET
  return nullptr;
}

// Returns the number of files that `target` read.
size_t Replay(Target target, const char* corpus) {
  size_t num_files = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(corpus, error)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    target(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    ++num_files;
  }
  return num_files;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: fuzz_replay NAME CORPUS\n");
    return 2;
  }
  const Target target = FindTarget(argv[1]);
  if (target == nullptr) {
    std::fprintf(stderr, "unknown fuzz target '%s'\n", argv[1]);
    return 2;
  }
  const size_t num_files = Replay(target, argv[2]);
  std::printf("%s: corpus files %zu\n", argv[1], num_files);
  return num_files == 0 ? 1 : 0;  // an empty corpus proves nothing
}
