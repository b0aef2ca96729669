#include "import/safetensors.h"

#include "base/random.h"
#include "import/model_files_for_test.h"

namespace kvasir {
namespace {

Result<std::vector<StoredTensor>> Parse(const std::string& file) {
  return ParseSafetensors(BytesOf(file), "m.safetensors");
}
void ExpectCorrupt(const std::string& file, const std::vector<std::string>& parts) {
  ExpectError(Parse(file), Code::kCorruption, parts);
}
std::string Entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

TEST(Safetensors, ReadsTensorsByOffsetWhateverTheOrderOfKeys) {
  const std::string header = "{\"__metadata__\":{\"format\":\"pt\"}," +
                             Entry("b", "BF16", "[2,3]", "[4,16]") + "," +
                             Entry("a", "F32", "[1]", "[0,4]") + "}   ";
  const std::string file = Safetensors(header, "0123456789abcdef");
  const auto tensors = Parse(file);
  ASSERT_TRUE(tensors) << tensors.error().message;
  ASSERT_EQ(tensors->size(), 2u);
  EXPECT_EQ((*tensors)[0].name, "a");
  EXPECT_EQ((*tensors)[1].name, "b");
  EXPECT_EQ((*tensors)[1].dtype, DType::kBf16);
  EXPECT_EQ((*tensors)[1].shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(std::memcmp((*tensors)[1].bytes.data(), "456789abcdef", 12), 0);
}

TEST(Safetensors, ReadsScalarsEmptyTensorsAndTypesThatNoWeightHas) {
  const auto tensors = Parse(Safetensors("{" + Entry("scalar", "F32", "[]", "[0,4]") + "," +
                                             Entry("none", "F16", "[0,7]", "[4,4]") + "," +
                                             Entry("ids", "I64", "[1]", "[4,12]") + "," +
                                             Entry("odd", "F16", "[1]", "[12,14]") + "}",
                                         "0123456789abcd"));
  ASSERT_TRUE(tensors) << tensors.error().message;
  ASSERT_EQ(tensors->size(), 4u);
  EXPECT_FALSE((*tensors)[2].dtype.has_value());
  EXPECT_EQ((*tensors)[2].type, "I64");
}

TEST(Safetensors, AFileWithoutTensorsIsEmpty) {
  const auto tensors = Parse(Safetensors("{}"));
  ASSERT_TRUE(tensors) << tensors.error().message;
  EXPECT_TRUE(tensors->empty());
}

TEST(Safetensors, RefusesAHeaderThatIsNotThere) {
  ExpectCorrupt("", {"0 bytes", "m.safetensors"});
  ExpectCorrupt("1234567", {"7 bytes"});
  ExpectCorrupt(Le<uint64_t>(0), {"not a JSON object"});
  ExpectCorrupt(Le<uint64_t>(100) + "{}", {"header of 100 bytes in a file of 10", "cut short"});
  ExpectCorrupt(Le<uint64_t>(100'000'001) + "{}", {"100000001", "at most 100000000"});
  ExpectCorrupt(Le(~uint64_t{0}) + "{}", {"header of 18446744073709551615"});
}

TEST(Safetensors, RefusesMalformedJson) {
  ExpectCorrupt(Safetensors("{"), {"not valid JSON"});
  ExpectCorrupt(Safetensors("{\"a\":}"), {"not valid JSON"});
  ExpectCorrupt(Safetensors("[]"), {"not a JSON object"});
  ExpectCorrupt(Safetensors("{} {}"), {"not valid JSON"});
  ExpectCorrupt(Safetensors("{\"\xff\":1}"), {"not valid JSON"});
  ExpectCorrupt(Safetensors("{\"a\":1e999}"), {"not valid JSON"});
  ExpectCorrupt(Safetensors("{\"a\":" + std::string(100'000, '[') + "}"), {"tensor 'a'"});
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += "{\"a\":";
  ExpectCorrupt(Safetensors(nested), {"tensor 'a'"});
}

TEST(Safetensors, RefusesEntriesOfTheWrongKind) {
  ExpectCorrupt(Safetensors("{\"a\":3}"), {"tensor 'a'", "a number, not an object"});
  ExpectCorrupt(Safetensors("{\"a\":null}"), {"tensor 'a'", "null"});
  ExpectCorrupt(Safetensors("{\"a\":{}}"), {"tensor 'a'", "needs dtype"});
  ExpectCorrupt(Safetensors("{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}"), {"data_offsets"});
  ExpectCorrupt(Safetensors("{\"a\":{\"dtype\":32}}"), {"dtype holds a number"});
  ExpectCorrupt(Safetensors("{" + Entry("a", "F32", "[-1]", "[0,4]") + "}"), {"negative"});
  ExpectCorrupt(Safetensors("{" + Entry("a", "F32", "[1.5]", "[0,4]") + "}"), {"fraction"});
  ExpectCorrupt(Safetensors("{" + Entry("a", "F32", "\"1\"", "[0,4]") + "}"), {"string"});
  ExpectCorrupt(Safetensors("{" + Entry("a", "F32", "[[1]]", "[0,4]") + "}"), {"array"});
  ExpectCorrupt(Safetensors("{" + Entry("a", "F32", "{}", "[0,4]") + "}"), {"nested"});
  ExpectCorrupt(Safetensors("{" + Entry("a", "F32", "[1]", "[4]") + "}", "1234"), {"1 numbers"});
  ExpectCorrupt(Safetensors("{" + Entry("a", "F32", "[1]", "[0,4,8]") + "}", "1234"),
                {"3 numbers"});
  ExpectCorrupt(Safetensors("{\"a\":{\"dtype\":\"F32\",\"extra\":1}}"), {"unknown key 'extra'"});
  ExpectCorrupt(Safetensors("{\"__metadata__\":{\"a\":1}}"), {"__metadata__", "only strings"});
  ExpectCorrupt(Safetensors("{\"__metadata__\":7}"), {"__metadata__", "not an object"});
  std::string many = "[1";
  for (int i = 0; i < 40; ++i) many += ",1";
  ExpectCorrupt(Safetensors("{" + Entry("a", "F32", many + "]", "[0,4]") + "}"), {"more than 32"});
}

TEST(Safetensors, RefusesDuplicateKeys) {
  const std::string a = Entry("a", "F32", "[1]", "[0,4]");
  ExpectCorrupt(Safetensors("{" + a + "," + a + "}", "1234"), {"key 'a' occurs twice"});
  ExpectCorrupt(Safetensors("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F16\"}}"),
                {"tensor 'a'", "'dtype' occurs twice"});
}

TEST(Safetensors, NamesTheTensorWithAnUnknownDtype) {
  ExpectError(Parse(Safetensors("{" + Entry("w", "Q9", "[1]", "[0,4]") + "}", "1234")),
              Code::kUnsupported, {"'w'", "'Q9'", "BF16"});
}

TEST(Safetensors, RefusesOffsetsThatLie) {
  const auto one = [](const std::string& shape, const std::string& offsets) {
    return Safetensors("{" + Entry("a", "F32", shape, offsets) + "}", "12345678");
  };
  ExpectCorrupt(one("[3]", "[0,12]"), {"'a'", "[0, 12]", "8 bytes"});
  ExpectCorrupt(one("[2]", "[8,0]"), {"'a'", "[8, 0]"});
  ExpectCorrupt(one("[1]", "[0,8]"), {"'a'", "shape [1]", "8 bytes"});
  ExpectCorrupt(one("[4611686018427387904,4]", "[0,0]"), {"shape"});  // 2^64 elements
  ExpectCorrupt(one("[18446744073709551615]", "[0,8]"), {"shape"});
  ExpectCorrupt(one("[99999999999999999999]", "[0,8]"), {"fraction"});  // beyond 64 bits
  ExpectCorrupt(one("[1]", "[0,4]"), {"cover 4 of 8"});
  ExpectCorrupt(one("[1]", "[4,8]"), {"gap"});
  const auto two = [](const std::string& a, const std::string& b, const std::string& data) {
    return Safetensors("{" + Entry("a", "F16", "[2]", a) + "," + Entry("b", "F16", "[2]", b) + "}",
                       data);
  };
  ExpectCorrupt(two("[0,4]", "[2,6]", "123456"), {"'b'", "inside another"});
  ExpectCorrupt(two("[0,4]", "[0,4]", "1234"), {"inside another"});
  ExpectCorrupt(two("[0,4]", "[6,10]", "1234567890"), {"gap"});
}

TEST(Safetensors, AHalfByteTypeMustFillWholeBytes) {
  ExpectCorrupt(Safetensors("{" + Entry("a", "F4", "[3]", "[0,1]") + "}", "1"), {"shape [3]"});
  EXPECT_TRUE(Parse(Safetensors("{" + Entry("a", "F4", "[4]", "[0,2]") + "}", "12")));
}

TEST(Safetensors, NoPrefixAndNoFlippedByteOfAFileCrashes) {
  const std::string file = Safetensors(
      "{" + Entry("a", "F32", "[1,2]", "[0,8]") + "," + Entry("b", "F16", "[2]", "[8,12]") + "}",
      "123456789012");
  ASSERT_TRUE(Parse(file));
  for (size_t n = 0; n < file.size(); ++n) EXPECT_FALSE(Parse(file.substr(0, n))) << n;
  Random random(7);
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string broken = file;
    broken[random.Below(broken.size() - 12)] ^= static_cast<char>(1 + random.Below(255));
    refused += !Parse(broken);
  }
  EXPECT_GT(refused, 15'000);  // the rest are other names and types of the same size
}

}  // namespace
}  // namespace kvasir
