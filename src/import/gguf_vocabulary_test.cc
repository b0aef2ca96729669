#include "import/gguf_vocabulary.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/bytes_for_test.h"
#include "base/mapped_file.h"
#include "base/needs_for_test.h"
#include "import/importer.h"
#include "import/model_files_for_test.h"
#include "source_paths.h"
#include "text/token_bytes_for_test.h"
#include "text/tokenizer.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<TokenId>;

Result<std::unique_ptr<Tokenizer>> MakeFrom(std::span<const std::byte> bytes) {
  const auto gguf = ParseGguf(bytes, "m.gguf");
  if (!gguf) return tl::unexpected(gguf.error());
  const auto vocabulary = ReadGgufVocabulary(*gguf, "m.gguf");
  if (!vocabulary) return tl::unexpected(vocabulary.error());
  if (!*vocabulary) return nullptr;
  return Tokenizer::Make(**vocabulary);
}

std::vector<std::string> Split(const std::string& text, const std::string& by) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t at = text.find(by); at != text.npos; at = text.find(by, begin)) {
    parts.push_back(text.substr(begin, at - begin));
    begin = at + by.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

// Compares a .gguf with the texts of its .inp and the ids of its .out. Returns how many texts there
// are.
size_t ExpectVectors(const fs::path& file) {
  const std::string bytes = ReadFile(file);
  const auto tokenizer = MakeFrom(BytesOf(bytes));
  if (!tokenizer) ADD_FAILURE() << file << ": " << tokenizer.error().message;
  if (!tokenizer) return 0;
  const auto texts = Split(ReadFile(file.string() + ".inp"), "\n__ggml_vocab_test__\n");
  const auto lines = Split(ReadFile(file.string() + ".out"), "\n");
  EXPECT_EQ(lines.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    std::istringstream line(lines[i]);
    const Ids want{std::istream_iterator<TokenId>(line), {}};
    EXPECT_EQ((*tokenizer)->Encode(texts[i], {.add_special = false}).value(), want)
        << file << ": " << texts[i];
    EXPECT_EQ((*tokenizer)->Decode(want), texts[i]) << file;
  }
  return texts.size();
}

TEST(GgufVocabulary, GivesTheIdsOfLlamaCppsTestVectors) {
  const fs::path folder = fs::path(KVASIR_SHARED_DIR) / "data/gguf-vocabs";
  KV_NEEDS(folder);
  size_t count = 0, num_texts = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".gguf" || entry.path().stem() == "ggml-vocab-bert-bge" ||
        !fs::exists(entry.path().string() + ".inp")) {
      continue;
    }
    num_texts += ExpectVectors(entry.path());
    const std::string bytes = ReadFile(entry.path());
    EXPECT_GT(ExpectBytesOfTokens(**MakeFrom(BytesOf(bytes))), 500u) << entry.path();
    ++count;
  }
  std::printf("%zu vocabularies, %zu texts\n", count, num_texts);
  EXPECT_EQ(count, 9u);
}

TEST(GgufVocabulary, ReadsFilesWithoutAPatternAndRefusesBertByName) {
  const fs::path folder = fs::path(KVASIR_SHARED_DIR) / "data/gguf-vocabs";
  KV_NEEDS(folder);
  const std::string text = "Hello  world, 1234 \n \xE6\x97\xA5";
  for (const char* name : {"ggml-vocab-gpt-neox.gguf", "ggml-vocab-baichuan.gguf"}) {
    const std::string bytes = ReadFile(folder / name);
    const auto tokenizer = MakeFrom(BytesOf(bytes));
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    EXPECT_EQ((*tokenizer)->Decode((*tokenizer)->Encode(text).value()), text) << name;
  }
  const std::string bert = ReadFile(folder / "ggml-vocab-bert-bge.gguf");
  ExpectError(MakeFrom(BytesOf(bert)), Code::kUnsupported, {"'bert'", "tokenizer.json"});
}

TEST(GgufVocabulary, GivesTheIdsOfTheFoldersOfTheSharedGoldens) {
  const fs::path goldens = fs::path(KVASIR_SHARED_DIR) / "goldens";
  KV_NEEDS(goldens);
  size_t count = 0, num_files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(goldens)) {
    if (entry.path().extension() != ".gguf") continue;
    const std::string bytes = ReadFile(entry.path());
    const auto tokenizer = MakeFrom(BytesOf(bytes));
    ASSERT_TRUE(tokenizer) << entry.path() << ": " << tokenizer.error().message;
    ++num_files;
    const auto golden = nlohmann::json::parse(ReadFile(entry.path().parent_path() / "golden.json"));
    for (const auto& test : golden["tokenizer"]["texts"]) {
      const Ids ids = test["ids"];
      EXPECT_EQ((*tokenizer)->Encode(test["text"].get<std::string>()).value(), ids) << test;
      EXPECT_EQ((*tokenizer)->Decode(ids), test["decoded"].get<std::string>()) << test;
      ++count;
    }
  }
  std::printf("%zu files, %zu texts\n", num_files, count);
  EXPECT_GE(count, 60u);
}

// Writes the tokenizer.ggml keys of a small vocabulary; each may be left out or changed.
class VocabularyFile {
 public:
  explicit VocabularyFile(const std::string& model) : model_(model) {}

  VocabularyFile& Token(const std::string& text, int kind = 1, float score = 0) {
    tokens.push_back(text);
    kinds.push_back(kind);
    scores.push_back(score);
    return *this;
  }
  std::string Build() const {
    GgufBuilder b;
    b.Text("tokenizer.ggml.model", model_);
    if (!pre.empty()) b.Text("tokenizer.ggml.pre", pre);
    if (!without.contains("tokens")) Strings(b, "tokens", tokens);
    if (!without.contains("token_type")) Numbers<int32_t>(b, "token_type", 5, kinds);
    if (model_ == "llama" && !without.contains("scores")) Numbers<float>(b, "scores", 6, scores);
    if (model_ != "llama" && !without.contains("merges")) Strings(b, "merges", merges);
    for (const auto& [key, id] : ids) b.U32("tokenizer.ggml." + key, id);
    for (const auto& [key, on] : flags)
      b.Raw("tokenizer.ggml." + key, 7, on ? "\x01" : std::string(1, 0));
    for (const auto& [key, raw] : raws) b.Raw("tokenizer.ggml." + key, raw.first, raw.second);
    return b.Build();
  }

  std::vector<std::string> tokens, merges;
  std::vector<int32_t> kinds;
  std::vector<float> scores;
  std::string pre;
  std::set<std::string> without;
  std::map<std::string, uint32_t> ids;
  std::map<std::string, bool> flags;
  std::map<std::string, std::pair<uint32_t, std::string>> raws;

 private:
  static void Strings(GgufBuilder& b, const std::string& key,
                      const std::vector<std::string>& values) {
    std::string raw = Le<uint32_t>(8) + b.Count(values.size());
    for (const std::string& value : values) raw += b.Str(value);
    b.Raw("tokenizer.ggml." + key, 9, raw);
  }
  template <typename T>
  static void Numbers(GgufBuilder& b, const std::string& key, uint32_t type,
                      const std::vector<T>& values) {
    std::string raw = Le<uint32_t>(type) + b.Count(values.size());
    for (T value : values) raw += Le(value);
    b.Raw("tokenizer.ggml." + key, 9, raw);
  }
  std::string model_;
};

Result<std::unique_ptr<Tokenizer>> Make(const VocabularyFile& file) {
  const std::string bytes = file.Build();
  return MakeFrom(BytesOf(bytes));
}

VocabularyFile Pieces() {
  VocabularyFile file("llama");
  file.Token("<unk>", 2).Token("<s>", 3).Token("</s>", 3);
  file.Token("\xE2\x96\x81", 1, -1).Token("a", 1, -2).Token("b", 1, -3).Token("ab", 1, -4);
  return file;
}

VocabularyFile Bytes() {
  VocabularyFile file("gpt2");
  file.pre = "gpt-2";
  file.Token("a").Token("b").Token("ab").Token("<|im_end|>", 4).Token("<|end|>", 3);
  file.merges = {"a b"};
  return file;
}

// Returns the bundled model's vocabulary, from its tokenizer.json, as a GGUF file has it.
VocabularyFile DemoVocabulary() {
  const fs::path folder = fs::path(KVASIR_SOURCE_DIR) / "models/kvasir-demo";
  const auto json = nlohmann::json::parse(ReadFile(folder / "tokenizer.json"));
  VocabularyFile file("gpt2");
  file.pre = "smollm";
  const auto& vocab = json["model"]["vocab"];
  file.tokens.resize(vocab.size());
  for (const auto& token : vocab.items()) file.tokens[token.value().get<size_t>()] = token.key();
  file.kinds.assign(vocab.size(), 1);
  for (const auto& token : json["added_tokens"]) file.kinds[token["id"].get<size_t>()] = 3;
  for (const auto& merge : json["model"]["merges"]) {
    file.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  file.ids = {{"bos_token_id", 1}, {"eos_token_id", 2}};
  return file;
}

TEST(GgufVocabulary, GivesWhatTheTokenizerJsonOfTheBundledModelGives) {
  const auto tokenizer = Make(DemoVocabulary());
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  std::ifstream golden(fs::path(KVASIR_SOURCE_DIR) / "tests/data/tokenizer/kvasir-demo.jsonl");
  size_t count = 0;
  for (std::string line; std::getline(golden, line); ++count) {
    const auto test = nlohmann::json::parse(line);
    const Ids ids = test["ids"];
    if (test.contains("text")) {
      EncodeOptions options;
      options.add_special = test["add_special"];
      options.parse_special = test["parse_special"];
      EXPECT_EQ((*tokenizer)->Encode(test["text"].get<std::string>(), options).value(), ids);
    }
    EXPECT_EQ((*tokenizer)->Decode(ids, SpecialTokens::kShow),
              test["decoded_all"].get<std::string>())
        << line;
  }
  EXPECT_GE(count, 100u);
}

TEST(GgufVocabulary, AddsBosAndSpacesAsTheFileSays) {
  VocabularyFile file = Pieces();
  EXPECT_EQ((*Make(file))->Encode("ab").value(), (Ids{1, 3, 6}));  // <s> by its place
  file.flags["add_bos_token"] = false;
  EXPECT_EQ((*Make(file))->Encode("ab").value(), (Ids{3, 6}));
  file.flags["add_eos_token"] = true;
  EXPECT_EQ((*Make(file))->Encode("ab").value(), (Ids{3, 6, 2}));
  file.flags["add_space_prefix"] = false;
  EXPECT_EQ((*Make(file))->Encode("ab").value(), (Ids{6, 2}));
  file = Bytes();
  EXPECT_EQ((*Make(file))->Encode("ab").value(), (Ids{2}));
  file.ids["bos_token_id"] = 4;
  EXPECT_EQ((*Make(file))->Encode("ab").value(), (Ids{2}));
  file.pre = "llama-bpe";  // adds BOS unless the file says otherwise
  EXPECT_EQ((*Make(file))->Encode("ab").value(), (Ids{4, 2}));
  EXPECT_EQ((*Make(file))->bos_text(), "<|end|>");
}

TEST(GgufVocabulary, EndsOfTurnsAreControlTokensAndEndAnswers) {
  const std::string bytes = Bytes().Build();
  const auto gguf = ParseGguf(BytesOf(bytes), "m");
  ASSERT_TRUE(gguf);
  EXPECT_EQ(EndsByName(*gguf), (Ids{3, 4}));
  const auto tokenizer = Make(Bytes());
  EXPECT_TRUE((*tokenizer)->IsSpecial(3));  // though the file calls it user-defined
  VocabularyFile text = Bytes();
  text.kinds[3] = 1;
  const std::string as_text = text.Build();
  EXPECT_EQ(EndsByName(*ParseGguf(BytesOf(as_text), "m")), (Ids{4}));
}

TEST(GgufVocabulary, PaddingRowsAreNoTokens) {
  VocabularyFile file = Bytes();
  file.Token("[PAD5]", 4);
  const auto tokenizer = Make(file);
  ASSERT_TRUE(tokenizer);
  EXPECT_FALSE((*tokenizer)->IdOf("[PAD5]"));
  EXPECT_EQ((*tokenizer)->Encode("ab[PAD5]").value(), (Ids{2}));
}

TEST(GgufVocabulary, NamesWhatIsWrongAndHowToGoOn) {
  const auto expect = [](const VocabularyFile& file, Code code, const std::string& part) {
    ExpectError(Make(file), code, {"m.gguf", part, "tokenizer.json"});
  };
  VocabularyFile file = Bytes();
  file.pre = "mystery";
  expect(file, Code::kUnsupported, "'mystery'");
  for (const char* key : {"tokens", "merges"}) {
    file = Bytes();
    file.without.insert(key);
    expect(file, Code::kCorruption, std::string(key) + "' is missing");
    file.raws[key] = {9, Le<uint32_t>(4) + Le<uint64_t>(1) + Le<uint32_t>(7)};
    expect(file, Code::kCorruption, std::string(key) + "' must be a list of strings");
    file.raws[key] = {4, Le<uint32_t>(7)};
    expect(file, Code::kCorruption, std::string(key) + "' must be a list");
  }
  file = Bytes();
  file.merges.push_back("a z");
  expect(file, Code::kCorruption, "merge 1");
  file = Bytes();
  file.Token("ab");
  expect(file, Code::kCorruption, "tokens 2 and 5 are both 'ab'");
  file = Bytes();
  file.Token("\xFF");
  expect(file, Code::kCorruption, "token 5 is not UTF-8");
  file = Bytes();
  file.kinds.pop_back();
  expect(file, Code::kCorruption, "token_type' has 4 entries for 5 tokens");
  file = Bytes();
  file.kinds[1] = 7;
  expect(file, Code::kCorruption, "token_type' has 7 for token 1");
  file = Bytes();
  file.raws["bos_token_id"] = {8, Le<uint64_t>(1) + "x"};
  expect(file, Code::kCorruption, "bos_token_id' must be a whole number");
  file = Bytes();
  file.raws["add_bos_token"] = {4, Le<uint32_t>(1)};
  expect(file, Code::kCorruption, "add_bos_token' must be a boolean");
  file = Pieces();
  file.scores[4] = std::nanf("");
  expect(file, Code::kCorruption, "the score of token 4 ('a') is not a number");
  file = Pieces();
  file.without.insert("scores");
  expect(file, Code::kCorruption, "scores' is missing");
  for (const char* kind : {"bert", "t5", "rwkv"}) {
    file = VocabularyFile(kind);
    expect(file, Code::kUnsupported, "'" + std::string(kind) + "'");
  }
}

// Each entry of a list takes 8 bytes of a (sparse) file and 80 of memory.
TEST(GgufVocabulary, AListThatIsTooLongIsRefusedBeforeItIsCopied) {
  const uint64_t count = kMaxVocabulary + 1;
  const std::string list = Le<uint32_t>(8) + Le(count) + std::string(count * 8, '\0');
  for (const char* key : {"tokens", "merges"}) {
    VocabularyFile file = Bytes();
    file.without.insert(key);
    file.raws[key] = {9, list};
    const std::string bytes = file.Build();
    const auto gguf = ParseGguf(BytesOf(bytes), "m.gguf");
    ASSERT_TRUE(gguf);
    ExpectError(ReadGgufVocabulary(*gguf, "m.gguf"), Code::kCorruption,
                {key, "has 4194305 entries, at most 4194304"});
    EXPECT_EQ(EndsByName(*gguf).empty(), std::string_view(key) == "tokens");
  }
}

TEST(GgufVocabulary, AFileWithoutOneHasNone) {
  const std::string bytes = GgufBuilder().Text("general.architecture", "llama").Build();
  const auto tokenizer = MakeFrom(BytesOf(bytes));
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(*tokenizer, nullptr);
}

}  // namespace
}  // namespace kvasir
