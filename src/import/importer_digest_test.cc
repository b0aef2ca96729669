#include <algorithm>

#include "import/importer.h"
#include "import/model_files_for_test.h"
#include "source_paths.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

fs::path DemoFolder() { return fs::path(KVASIR_SOURCE_DIR) / "models/kvasir-demo"; }
void CopyDemo(const fs::path& to) {
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::copy_file(DemoFolder() / name, to / name);
  }
}
ImportedModel MustImport(const fs::path& path) {
  auto model = ImportModel(path);
  EXPECT_TRUE(model) << model.error().message;
  return std::move(*model);
}
// Returns the digest, and how many bytes were read for it.
std::pair<Digest, uint64_t> Measure(const ImportedModel& model, const fs::path& cache,
                                    const Secret& secret = {}) {
  uint64_t read = 0, total = 0;
  std::optional<DigestMemory> memory;
  if (!cache.empty()) memory = {cache, secret};
  const auto digest = WeightsDigest(model, memory, [&](uint64_t done, uint64_t of) {
    read = done;
    total = of;
  });
  EXPECT_TRUE(digest);
  EXPECT_EQ(read, total);
  return {*digest, read};
}
std::vector<fs::path> Files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  return files;
}
std::string Text(const fs::path& path) { return *ReadTextFile(path, 1 << 20); }

TEST(WeightsDigest, IsOfTheContentWhateverThePath) {
  const TemporaryFolder cache, copy, changed;
  CopyDemo(copy.path());
  CopyDemo(changed.path());
  const auto [digest, read] = Measure(MustImport(DemoFolder()), cache.path());
  const auto [same, read_again] = Measure(MustImport(copy.path()), cache.path());
  EXPECT_EQ(digest, same);
  EXPECT_EQ(read_again, fs::file_size(DemoFolder() / "model.safetensors"));
  {
    std::fstream file(changed.path() / "model.safetensors", std::ios::in | std::ios::out);
    file.seekp(-1, std::ios::end);
    file.put('\x3c');
  }
  EXPECT_NE(Measure(MustImport(changed.path()), cache.path()).first, digest);
}

TEST(WeightsDigest, AChangeWithoutATraceInSizeAndTimeIsSeen) {
  const TemporaryFolder cache, copy;
  CopyDemo(copy.path());
  const fs::path weights = copy.path() / "model.safetensors";
  const auto time = fs::last_write_time(weights);
  const auto [before, read] = Measure(MustImport(copy.path()), cache.path());
  {
    std::fstream file(weights, std::ios::in | std::ios::out);
    file.seekp(-1, std::ios::end);
    file.put('\x3c');
  }
  fs::last_write_time(weights, time);
  EXPECT_NE(Measure(MustImport(copy.path()), cache.path()).first, before);
}

// The bundled model's files have long been as they are; freshly written ones are not remembered.
TEST(WeightsDigest, IsRememberedUntilTheMemoryIsBroken) {
  const TemporaryFolder cache;
  const ImportedModel model = MustImport(DemoFolder());
  const auto [digest, first_read] = Measure(model, cache.path() / "new" / "folder");
  EXPECT_EQ(first_read, fs::file_size(DemoFolder() / "model.safetensors"));
  const auto files = Files(cache.path() / "new" / "folder");
  ASSERT_EQ(files.size(), 1u);  // and nothing was left aside
  EXPECT_EQ(Measure(model, cache.path() / "new" / "folder"), (std::pair{digest, uint64_t{0}}));
  const std::string text = Text(files[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string broken = text;
    broken[i] ^= 1;
    std::ofstream(files[0], std::ios::binary) << broken;
    const auto [again, read] = Measure(model, cache.path() / "new" / "folder");
    EXPECT_EQ(again, digest);
    EXPECT_EQ(read, first_read) << "byte " << i << " was not looked at";
    i += 12;
  }
  // A user that can write here but does not know the secret has no say.
  EXPECT_EQ(Measure(model, cache.path() / "new" / "folder", Secret{1}).second, first_read);
  std::ofstream(files[0], std::ios::binary) << text.substr(0, text.size() / 2);
  EXPECT_EQ(Measure(model, cache.path() / "new" / "folder"), (std::pair{digest, first_read}));
  EXPECT_EQ(Text(files[0]), text);
}

TEST(WeightsDigest, AnUnusableCacheFolderOnlyCostsTime) {
  const TemporaryFolder folder;
  const ImportedModel model = MustImport(DemoFolder());
  const auto [digest, read] = Measure(model, folder.Write("file", "x") / "below");
  EXPECT_GT(read, 0u);
  EXPECT_EQ(Measure(model, ""), (std::pair{digest, read}));
  EXPECT_EQ(*WeightsDigest(model, {}, {}), digest);
}

TEST(WeightsDigest, TellsSyntheticModelsApart) {
  std::vector<Digest> digests;
  for (const char* shape : {"tiny", "llama-100m"}) {
    for (DType dtype : {DType::kF32, DType::kBf16}) {
      for (uint64_t seed : {1, 2}) {
        digests.push_back(*WeightsDigest(*SyntheticModel(shape, dtype, seed), {}, {}));
      }
    }
  }
  std::ranges::sort(digests);
  EXPECT_EQ(std::ranges::adjacent_find(digests), digests.end());
}

}  // namespace
}  // namespace kvasir
