#include "engine/model_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "base/environment_for_test.h"
#include "source_paths.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

TEST(ModelFiles, AModelIsTheOptionElseTheEnvironmentsElseTheBundledOne) {
  const Environment named{{"KVASIR_MODEL", "/nowhere/named"}};
  const auto missing = FindModel(std::nullopt);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  EXPECT_NE(missing.error().message.find("/nowhere/named"), std::string::npos);
  EXPECT_EQ(*FindModel("/tmp"), "/tmp");
  const auto bundled = FindModel("kvasir-demo"), latest = FindModel("kvasir-demo:latest");
  EXPECT_EQ(bundled.has_value(), latest.has_value()) << "the tag means none";
  if (!bundled) EXPECT_EQ(bundled.error().message, latest.error().message);
  EXPECT_EQ(FindModel("kvasir-demo:other").error().field, "model");
}

TEST(ModelFiles, TheBundledModelIsTheInstalledOneElseTheOneOfTheBuild) {
  std::string pattern = fs::temp_directory_path() / "kvasir-model-files-XXXXXX";
  const fs::path root = mkdtemp(pattern.data());
  const auto put = [&](const std::string& folder) {
    fs::create_directories(root / folder / "kvasir-demo");
    std::ofstream(root / folder / "kvasir-demo/config.json") << "{}";
    return fs::canonical(root / folder / "kvasir-demo");
  };
  fs::create_directories(root / "usr/bin");
  fs::create_directories(root / "build/release");
  const auto missing = FindBundledModel(root / "usr/bin");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  EXPECT_NE(missing.error().message.find("usr/share/kvasir/models/kvasir-demo"), std::string::npos);
  const fs::path developed = put("models");
  EXPECT_EQ(*FindBundledModel(root / "build/release"), developed);
  const fs::path beside = put("build/release/models");
  EXPECT_EQ(*FindBundledModel(root / "build/release"), beside);
  const fs::path installed = put("usr/share/kvasir/models");
  put("usr/bin/models");
  EXPECT_EQ(*FindBundledModel(root / "usr/bin"), installed);
  fs::remove_all(root);
}

TEST(ModelFiles, ATokenizerThatDoesNotFitTheModelIsRefused) {
  auto model = ImportModel(*FindModel(KVASIR_SOURCE_DIR "/models/kvasir-demo"));
  ASSERT_TRUE(model) << model.error().message;
  TextSource source = TakeText(*model);
  const auto text = LoadText(source);
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_TRUE(text->tokenizer && text->chat_template);
  source.vocab_size = text->tokenizer->vocab_size() - 1;
  const auto refused = LoadText(source);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("belongs to another model"), std::string::npos);
  EXPECT_TRUE(model->tokenizer_json.empty());  // taken
  const auto ids_only = LoadText(TakeText(*model));
  ASSERT_TRUE(ids_only);
  EXPECT_FALSE(ids_only->tokenizer || ids_only->chat_template);
  EXPECT_EQ(ids_only->no_text,
            "the model has no tokenizer (tokenizer.json, tokenizer.model, *.tiktoken or the GGUF "
            "file's own); put one into its folder");
}

// Makes a vocabulary of letters and the two tokens of ChatML.
Vocabulary ChatMlVocabulary() {
  Vocabulary vocabulary;
  vocabulary.file = "m.gguf";
  vocabulary.pre = "gpt-2";
  vocabulary.tokens = {
      {"a"}, {"<|im_start|>", TokenKind::kControl}, {"<|im_end|>", TokenKind::kControl}};
  vocabulary.merges = std::vector<std::string>{};
  return vocabulary;
}

TEST(ModelFiles, AModelWithoutATemplateIsServedWithChatMlWhereItHasTheTokens) {
  TextSource source{.vocab_size = 8, .vocabulary = ChatMlVocabulary()};
  auto text = LoadText(source);
  ASSERT_TRUE(text) << text.error().message;
  ASSERT_TRUE(text->chat_template);
  EXPECT_NE(TextNotes(*text)[0].find("ChatML is used"), std::string::npos);
  ModelConfig config;
  config.vocab_size = 8;
  EXPECT_EQ(EndTokens(config, *text), std::vector<TokenId>{2});
  source.chat_template = "{{ messages[0].content }}";
  text = LoadText(source);
  EXPECT_EQ(text->chat_template->source(), source.chat_template);
  EXPECT_TRUE(TextNotes(*text).empty());
  source.chat_template.clear();
  (*source.vocabulary)->tokens[2].text = "<|other|>";
  text = LoadText(source);
  EXPECT_FALSE(text->chat_template);
  EXPECT_NE(TextNotes(*text)[0].find("no chats"), std::string::npos);
  EXPECT_NE(TextNotes(*text, true)[0].find("/v1/translations"), std::string::npos);
  EXPECT_EQ(TextNotes(*text, true)[0].find("/v1/completions"), std::string::npos);
}

// Before merges are built: these tokens would be refused there, since two are equal.
TEST(ModelFiles, AVocabularyLargerThanTheModelsIsRefusedFirst) {
  TextSource source{.vocab_size = 3, .vocabulary = ChatMlVocabulary()};
  EXPECT_TRUE(LoadText(source));
  (*source.vocabulary)->tokens.push_back({"a"});
  const auto refused = LoadText(source);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("ids up to 3"), std::string::npos);
  source.vocab_size = 4;
  EXPECT_EQ(LoadText(source).error().code, Code::kCorruption);
}

TEST(ModelFiles, AnUnknownVocabularyLeavesIdsAndADamagedOneIsAnError) {
  TextSource source{.vocab_size = 8, .vocabulary = ChatMlVocabulary()};
  (*source.vocabulary)->pre = "mystery";
  const auto text = LoadText(source);
  ASSERT_TRUE(text);
  EXPECT_FALSE(text->tokenizer);
  EXPECT_NE(TextNotes(*text)[0].find("'mystery'"), std::string::npos);
  source.vocabulary = ChatMlVocabulary();
  (*source.vocabulary)->tokens[0].text = "<|im_end|>";
  EXPECT_EQ(LoadText(source).error().code, Code::kCorruption);
  source.vocabulary = tl::unexpected(Error{Code::kUnsupported, "kind 'bert'"});
  EXPECT_EQ(LoadText(source)->no_text, "kind 'bert'");
  // Clients of a server read it: no folder is named.
  source.path = "/secret/models/m.gguf";
  source.vocabulary = tl::unexpected(Error{Code::kUnsupported, "/secret/models/m.gguf: kind 'x'"});
  EXPECT_EQ(LoadText(source)->no_text, "m.gguf: kind 'x'");
}

}  // namespace
}  // namespace kvasir
