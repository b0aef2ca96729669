#include "import/gguf_metadata.h"

#include <gtest/gtest.h>

#include <cstring>

#include "import/model_files_for_test.h"

namespace kvasir {
namespace {

constexpr uint32_t kLayers = 3;

// Makes a GGUF list of u32, as the value of a key.
std::string ListOf(const std::vector<uint32_t>& entries) {
  std::string bytes = Le<uint32_t>(4) + Le<uint64_t>(entries.size());
  for (const uint32_t entry : entries) bytes += Le(entry);
  return bytes;
}

class GgufMetadata : public ::testing::Test {
 protected:
  // Reads the keys of a file: `write` adds to the number of layers.
  template <typename Write>
  Metadata Read(const Write& write) {
    GgufBuilder builder;
    builder.U32("llama.block_count", kLayers);
    write(builder);
    bytes_ = builder.Build();
    file_ = *ParseGguf(std::as_bytes(std::span(bytes_)), "m.gguf");
    return Metadata(file_, "llama.", name_);
  }

  const std::string name_ = "m.gguf";
  std::string bytes_;
  GgufFile file_;
};

TEST_F(GgufMetadata, AListWithTheSameEntryForEachLayerIsThatEntry) {
  constexpr uint32_t kList = 9;
  const auto with = [&](const std::vector<uint32_t>& entries) {
    return Read([&](GgufBuilder& b) { b.Raw("llama.heads", kList, ListOf(entries)); });
  };
  Metadata equal = with({8, 8, 8});
  EXPECT_EQ(equal.Count("heads", 100), 8u);
  EXPECT_EQ(equal.Number("heads"), 8.0);
  EXPECT_TRUE(equal.status());
  const auto error = [&](const std::vector<uint32_t>& entries) {
    Metadata keys = with(entries);
    (void)keys.Count("heads", 100, 5);
    return keys.status() ? Error{} : keys.status().error();
  };
  EXPECT_EQ(error({8, 8, 9}).code, Code::kUnsupported);
  EXPECT_EQ(
      error({8, 8, 9}).message,
      "m.gguf: metadata 'llama.heads' differs from layer to layer: that is not supported yet");
  EXPECT_EQ(error({8, 8}).message, "m.gguf: metadata 'llama.heads' has 2 entries for 3 layers");
  EXPECT_EQ(error({}).message, "m.gguf: metadata 'llama.heads' has 0 entries for 3 layers");
  EXPECT_EQ(error({0, 0, 0}).message,
            "m.gguf: metadata 'llama.heads' must be a whole number from 1 to 100");
}

TEST_F(GgufMetadata, ANumberMayBeWrittenAsAnInteger) {
  Metadata keys = Read([](GgufBuilder& b) { b.U32("llama.base", 500000).Text("llama.x", "1"); });
  EXPECT_EQ(keys.Number("base"), 500000.0);
  EXPECT_EQ(keys.Number("none", 2.5), 2.5);
  EXPECT_TRUE(keys.status());
  (void)keys.Number("x");
  EXPECT_EQ(keys.status().error().message, "m.gguf: metadata 'llama.x' must be a float");
}

}  // namespace
}  // namespace kvasir
