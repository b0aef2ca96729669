#include "import/gguf.h"

#include "base/random.h"
#include "import/model_files_for_test.h"

namespace kvasir {
namespace {

Result<GgufFile> ParseFile(const std::string& file) { return ParseGguf(BytesOf(file), "m.gguf"); }
void ExpectCorruptGguf(const std::string& file, const std::vector<std::string>& parts) {
  ExpectError(ParseFile(file), Code::kCorruption, parts);
}
const std::string kFour = std::string(16, 'x');  // four F32

class GgufVersions : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(All, GgufVersions, testing::Values(1, 2, 3));

TEST_P(GgufVersions, ReadMetadataOfEveryTypeAndTensors) {
  GgufBuilder b(GetParam());
  b.Raw("u8", 0, Le<uint8_t>(200)).Raw("i8", 1, Le<int8_t>(-3)).Raw("u16", 2, Le<uint16_t>(60000));
  b.Raw("i16", 3, Le<int16_t>(-300)).U32("u32", 4'000'000'000u).Raw("i32", 5, Le<int32_t>(-70000));
  b.F32("f32", 0.5f).Raw("bool", 7, "\x01").Text("string", "text");
  b.Raw("u64", 10, Le(uint64_t{1} << 60)).Raw("i64", 11, Le<int64_t>(-1)).Raw("f64", 12, Le(0.1));
  b.Raw("list", 9, Le<uint32_t>(8) + b.Count(2) + b.Str("a") + b.Str("bc"));
  b.Raw("nested", 9,
        Le<uint32_t>(9) + b.Count(2) + Le<uint32_t>(0) + b.Count(3) + "123" + Le<uint32_t>(4) +
            b.Count(1) + Le<uint32_t>(9));
  b.Tensor("t", {2, 3}, 1, std::string(12, 'h')).Tensor("q", {32, 2}, 8, std::string(68, 'q'));
  const std::string file = b.Build();
  const auto gguf = ParseFile(file);
  ASSERT_TRUE(gguf) << gguf.error().message;
  EXPECT_EQ(gguf->version, GetParam());
  const auto& m = gguf->metadata;
  EXPECT_EQ(std::get<uint64_t>(m.at("u8")), 200u);
  EXPECT_EQ(std::get<int64_t>(m.at("i8")), -3);
  EXPECT_EQ(std::get<uint64_t>(m.at("u16")), 60000u);
  EXPECT_EQ(std::get<int64_t>(m.at("i16")), -300);
  EXPECT_EQ(std::get<uint64_t>(m.at("u32")), 4'000'000'000u);
  EXPECT_EQ(std::get<int64_t>(m.at("i32")), -70000);
  EXPECT_EQ(std::get<double>(m.at("f32")), 0.5);
  EXPECT_TRUE(std::get<bool>(m.at("bool")));
  EXPECT_EQ(std::get<std::string>(m.at("string")), "text");
  EXPECT_EQ(std::get<uint64_t>(m.at("u64")), uint64_t{1} << 60);
  EXPECT_EQ(std::get<int64_t>(m.at("i64")), -1);
  EXPECT_EQ(std::get<double>(m.at("f64")), 0.1);
  EXPECT_EQ(std::get<GgufArray>(m.at("list")).count, 2u);
  EXPECT_EQ(std::get<GgufArray>(m.at("nested")).element_type, 9u);
  ASSERT_EQ(gguf->tensors.size(), 2u);
  EXPECT_EQ(gguf->tensors[0].shape, (std::vector<uint64_t>{3, 2}));
  EXPECT_EQ(gguf->tensors[0].dtype, DType::kF16);
  EXPECT_EQ(gguf->tensors[0].bytes[0], std::byte{'h'});
  EXPECT_EQ(gguf->tensors[1].type, "Q8_0");
  EXPECT_EQ(gguf->tensors[1].dtype, DType::kQ8_0);
  EXPECT_EQ(gguf->tensors[1].bytes.size(), 68u);
}

TEST_P(GgufVersions, NoPrefixOfAFileIsAFile) {
  const std::string file = GgufBuilder(GetParam())
                               .Text("general.architecture", "llama")
                               .U32("n", 1)
                               .Tensor("a", {8}, 0, std::string(32, 'a'))
                               .Build();
  ASSERT_TRUE(ParseFile(file));
  for (size_t n = 0; n < file.size(); ++n) EXPECT_FALSE(ParseFile(file.substr(0, n))) << n;
}

TEST(Gguf, AlignmentMovesTheData) {
  GgufBuilder b(3, 64);
  b.U32("general.alignment", 64).Tensor("a", {4}, 0, kFour).Tensor("b", {4}, 0, kFour);
  const auto gguf = ParseFile(b.Build());
  ASSERT_TRUE(gguf) << gguf.error().message;
  EXPECT_EQ(gguf->tensors[1].bytes.data() - gguf->tensors[0].bytes.data(), 64);
  for (uint32_t wrong : {0u, 3u, 48u, 1u << 21}) {
    ExpectCorruptGguf(GgufBuilder().U32("general.alignment", wrong).Build(), {"general.alignment"});
  }
  ExpectCorruptGguf(GgufBuilder().Text("general.alignment", "32").Build(), {"general.alignment"});
}

TEST(Gguf, RefusesOtherFilesAndVersions) {
  ExpectCorruptGguf("", {"not a GGUF file"});
  ExpectCorruptGguf("GGML\3\0\0\0 and more bytes", {"not a GGUF file"});
  for (uint32_t version : {0u, 4u, 99u}) {
    ExpectError(ParseFile(GgufBuilder(version).Build()), Code::kUnsupported,
                {"version " + std::to_string(version), "1 to 3"});
  }
}

TEST(Gguf, RefusesBigEndianFilesClearly) {
  const std::string big = std::string("GGUF\0\0\0\3", 8) + std::string(16, '\0');
  ExpectError(ParseFile(big), Code::kUnsupported, {"big-endian", "convert"});
  const std::string swapped = std::string("FUGG\0\0\0\3", 8) + std::string(16, '\0');
  ExpectError(ParseFile(swapped), Code::kUnsupported, {"big-endian"});
}

TEST(Gguf, RefusesCountsThatTheFileCannotHold) {
  const std::string start = "GGUF" + Le<uint32_t>(3);
  ExpectCorruptGguf(start + Le(~uint64_t{0}) + Le<uint64_t>(0), {"do not fit"});
  ExpectCorruptGguf(start + Le<uint64_t>(0) + Le(uint64_t{1} << 40), {"do not fit"});
  ExpectCorruptGguf(start + Le<uint64_t>(1) + Le<uint64_t>(0), {"do not fit"});
}

TEST(Gguf, RefusesMalformedMetadata) {
  GgufBuilder b;
  ExpectCorruptGguf(GgufBuilder().U32("a", 1).U32("a", 2).Build(), {"'a' occurs twice"});
  ExpectCorruptGguf(GgufBuilder().Raw("a", 13, Le<uint64_t>(1)).Build(), {"'a'", "type 13"});
  ExpectCorruptGguf(GgufBuilder().Raw("a", 8, Le(~uint64_t{0})).Build(), {"'a'", "cut short"});
  ExpectCorruptGguf(GgufBuilder().Raw("a", 9, Le<uint32_t>(10) + Le(uint64_t{1} << 61)).Build(),
                    {"'a'"});
  ExpectCorruptGguf(GgufBuilder().Raw("a", 9, Le<uint32_t>(8) + Le(uint64_t{1} << 50)).Build(),
                    {"'a'"});
  ExpectCorruptGguf(GgufBuilder().Raw("a", 9, Le<uint32_t>(77) + Le<uint64_t>(0)).Build(), {"'a'"});
  std::string deep;
  for (int i = 0; i < 50'000; ++i) deep += Le<uint32_t>(9) + Le<uint64_t>(1);
  ExpectCorruptGguf(GgufBuilder().Raw("a", 9, deep + Le<uint32_t>(0) + Le<uint64_t>(0)).Build(),
                    {"'a'"});
  ExpectCorruptGguf(GgufBuilder().U32(std::string(65'536, 'k'), 1).Build(), {"pair 0"});
}

TEST(Gguf, RefusesATensorTableThatLies) {
  const auto file = [](const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    return GgufBuilder().Tensor("a", {4}, 0, kFour).Row("b", dims, type, offset).Build();
  };
  ExpectCorruptGguf(file({4}, 0, 32), {"'b'", "16 bytes at offset 32"});
  ExpectCorruptGguf(file({4}, 0, 16), {"'b'", "not a multiple of alignment 32"});
  ExpectCorruptGguf(file({4}, 0, 0), {"overlaps"});
  ExpectCorruptGguf(file({4}, 0, ~uint64_t{31}), {"'b'", "go beyond"});
  ExpectCorruptGguf(file({uint64_t{1} << 62, 8}, 0, 32), {"'b'", "dimensions"});
  ExpectCorruptGguf(file({uint64_t{1} << 62, 4, 2}, 14, 32), {"'b'"});
  ExpectCorruptGguf(file({33}, 2, 32), {"'b'", "Q4_0", "rows of 33", "block of 32"});
  ExpectCorruptGguf(file({128, 2}, 12, 32), {"'b'", "Q4_K", "rows of 128", "block of 256"});
  ExpectCorruptGguf(file({}, 0, 32), {"'b'", "0 dimensions"});
  ExpectCorruptGguf(file({1, 1, 1, 1, 1}, 0, 32), {"5 dimensions"});
  ExpectError(ParseFile(file({4}, 4, 32)), Code::kUnsupported, {"'b'", "unknown type 4"});
  ExpectError(ParseFile(file({4}, 1000, 32)), Code::kUnsupported, {"unknown type 1000"});
  GgufBuilder twice;
  twice.Tensor("a", {4}, 0, kFour).Tensor("a", {4}, 0, kFour);
  ExpectCorruptGguf(twice.Build(), {"tensor 'a' occurs twice"});
}

TEST(Gguf, NoFlippedByteCrashes) {
  GgufBuilder b;
  b.Text("general.architecture", "llama").U32("n", 3);
  b.Raw("list", 9, Le<uint32_t>(8) + b.Count(2) + b.Str("a") + b.Str("bc"));
  b.Tensor("a", {2, 2}, 0, kFour).Tensor("b", {4}, 0, kFour);
  const std::string file = b.Build();
  ASSERT_TRUE(ParseFile(file));
  Random random(11);
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string broken = file;
    broken[random.Below(broken.size())] ^= static_cast<char>(1 + random.Below(255));
    refused += !ParseFile(broken);
  }
  EXPECT_GT(refused, 2'000);
}

TEST(Gguf, AStringOfAnArrayIsFoundByItsIndex) {
  for (const uint32_t version : {1u, 2u, 3u}) {
    GgufBuilder builder(version);
    const std::string array = Le(uint32_t{8}) + builder.Count(3) + builder.Str("a") +
                              builder.Str("") + builder.Str("ccc");
    builder.Raw("tokens", 9, array).Raw("numbers", 9, Le(uint32_t{0}) + builder.Count(1) + "x");
    const std::string file = builder.Build();
    const auto gguf = ParseGguf(BytesOf(file), "x.gguf");
    ASSERT_TRUE(gguf) << gguf.error().message;
    const auto& tokens = std::get<GgufArray>(gguf->metadata.at("tokens"));
    EXPECT_EQ(StringAt(tokens, 0), "a");
    EXPECT_EQ(StringAt(tokens, 1), "");
    EXPECT_EQ(StringAt(tokens, 2), "ccc");
    EXPECT_FALSE(StringAt(tokens, 3));
    EXPECT_FALSE(StringAt(tokens, UINT64_MAX));
    EXPECT_FALSE(StringAt(std::get<GgufArray>(gguf->metadata.at("numbers")), 0));
  }
}

}  // namespace
}  // namespace kvasir
