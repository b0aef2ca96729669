// Pieces that are kept give the ids of the whole text, with every tokenizer at hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "base/random.h"
#include "base/rounds_for_test.h"
#include "import/gguf.h"
#include "import/gguf_vocabulary.h"
#include "source_paths.h"
#include "text/piece_store.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

std::string ReadWhole(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Null: not a tokenizer that Kvasir reads.
std::unique_ptr<Tokenizer> LoadTokenizer(const fs::path& path) {
  const std::string bytes = ReadWhole(path);
  const auto make = [](const Vocabulary& vocabulary) {
    auto made = Tokenizer::Make(vocabulary);
    return made ? std::move(*made) : nullptr;
  };
  if (path.extension() == ".gguf") {
    const auto gguf = ParseGguf(std::as_bytes(std::span(bytes)), path.string());
    if (!gguf) return nullptr;
    const auto vocabulary = ReadGgufVocabulary(*gguf, path.string());
    return vocabulary && *vocabulary ? make(**vocabulary) : nullptr;
  }
  if (path.extension() == ".model") {
    const auto vocabulary = ParseSentencePiece(bytes, path.string());
    return vocabulary ? make(*vocabulary) : nullptr;
  }
  auto parsed = Tokenizer::Parse(bytes, ReadWhole(path.parent_path() / "tokenizer_config.json"));
  return parsed ? std::move(*parsed) : nullptr;
}

std::vector<fs::path> TokenizersAtHand() {
  std::vector<fs::path> paths;
  for (const char* folder : {KVASIR_SOURCE_DIR "/models", KVASIR_SOURCE_DIR "/tests/data",
                             KVASIR_SHARED_DIR "/data", KVASIR_SHARED_DIR "/goldens"}) {
    if (!fs::exists(folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      const fs::path& path = entry.path();
      if (path.filename() == "tokenizer.json" || path.extension() == ".gguf" ||
          path.extension() == ".model") {
        paths.push_back(path);
      }
    }
  }
  return paths;
}

// Reads prose in two languages where it is at hand, else a text of this project.
std::string Prose() {
  const fs::path prose = fs::path(KVASIR_SHARED_DIR) / "data/prose";
  std::string text;
  for (const char* name : {"wikitext-2.valid.txt", "wagahaiwa_nekodearu.txt"}) {
    if (fs::exists(prose / name)) text += ReadWhole(prose / name).substr(0, 20000);
  }
  if (text.empty()) text = ReadWhole(KVASIR_SOURCE_DIR "/README.md");
  return text;
}

size_t CharBegin(std::string_view text, size_t at) {
  while (at < text.size() && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) ++at;
  return at;
}

// Texts of a chat: prose and odd characters, with special tokens between.
class Texts {
 public:
  Texts(const Tokenizer& tokenizer, std::string_view prose) : prose_(prose), random_(5) {
    for (uint32_t id = 0; id < tokenizer.vocab_size() && specials_.size() < 12; ++id) {
      const auto token = static_cast<TokenId>(id);
      if (tokenizer.IsSpecial(token)) specials_.emplace_back(tokenizer.TokenText(token));
    }
    // Pieces come again and again, as in a chat.
    for (int i = 0; i < 12; ++i) pieces_.push_back(Piece());
  }
  std::string Next() {
    std::string text;
    for (size_t i = random_.Below(12); i > 0; --i) {
      if (!specials_.empty() && random_.Below(3) > 0) {
        text += specials_[random_.Below(specials_.size())];
      }
      if (random_.Below(4) > 0) text += pieces_[random_.Below(pieces_.size())];
    }
    return text;
  }
  EncodeOptions Options(std::string_view text) {
    EncodeOptions options;
    options.add_special = random_.Below(2) == 0;
    options.parse_special = random_.Below(4) > 0;
    options.at_start = random_.Below(2) == 0;
    if (random_.Below(2) == 0) options.written = "<|im_start|>";
    size_t at = 0;
    for (size_t i = random_.Below(5); i > 0 && at < text.size(); --i) {
      const size_t begin = CharBegin(text, at + random_.Below(text.size() - at));
      at = CharBegin(text, begin + random_.Below(text.size() - begin + 1));
      options.literal.emplace_back(begin, at);
    }
    return options;
  }

 private:
  std::string Piece() {
    static constexpr const char* kOdd[] = {" ",       "  ",     "\n",     "\n\n ",
                                           "e\u0301", "\u2581", "\u00e9", "\xF0\x9F\x98\x80",
                                           "\t",      "1234",   "</s>",   "x"};
    std::string text;
    for (size_t i = random_.Below(4); i > 0; --i) {
      const size_t begin = CharBegin(prose_, random_.Below(prose_.size() - 300));
      const size_t end = CharBegin(prose_, begin + random_.Below(200));
      text += kOdd[random_.Below(std::size(kOdd))];
      text += prose_.substr(begin, end - begin);
    }
    return text + kOdd[random_.Below(std::size(kOdd))];
  }

  const std::string_view prose_;
  Random random_;
  std::vector<std::string> specials_, pieces_;
};

TEST(KeptPieces, GiveTheIdsOfTheWholeTextWithEveryTokenizerAtHand) {
  const std::string prose = Prose();
  size_t tokenizers = 0, skipped = 0, texts = 0;
  size_t number = 0;
  for (const fs::path& path : TokenizersAtHand()) {
    if (number++ % Rounds(1u, 3u) != 0) continue;
    const auto tokenizer = LoadTokenizer(path);
    if (!tokenizer) {
      ++skipped;
      continue;
    }
    ++tokenizers;
    PieceStore store(64 << 10, 7);  // small: pieces leave and come again
    const PieceSpace space = store.SpaceOf("");
    Texts make(*tokenizer, prose);
    for (int i = 0; i < Rounds(120, 15); ++i, ++texts) {
      const std::string text = make.Next();
      EncodeOptions options = make.Options(text);
      const auto whole = tokenizer->Encode(text, options);
      ASSERT_TRUE(whole) << path << ": " << whole.error().message;
      std::vector<EncodedPart> parts;
      options.pieces = &space;
      options.parts = &parts;
      ASSERT_EQ(*tokenizer->Encode(text, options), *whole) << path << ": " << text;
      ASSERT_EQ(*tokenizer->Encode(text, options), *whole) << path << ": " << text;
      EXPECT_TRUE(std::ranges::is_sorted(parts, {}, &EncodedPart::ids_end));
      EXPECT_EQ(parts.empty() ? 0 : parts.back().text_end, text.size());
    }
    EXPECT_GT(store.counts().found, Rounds(100u, 8u)) << path;
  }
  std::printf("%zu tokenizers, %zu texts; %zu files were skipped\n", tokenizers, texts, skipped);
  EXPECT_GE(tokenizers, Rounds(2u, 1u));
}

}  // namespace
}  // namespace kvasir
