#include "hub/file_choice.h"

#include <gtest/gtest.h>

namespace kvasir::hub {
namespace {

using Names = std::vector<std::string>;

// Returns the label of the chosen model, or the error.
std::string Chosen(const Names& files, const std::optional<std::string>& choice = {}) {
  const auto model = ChooseModel(files, choice, "a/b");
  return model ? model->label : model.error().message;
}

const Names kQuants = {"README.md",           "m-IQ4_NL.gguf", "m-Q4_K_M.gguf",
                       "m-Q4_K_S.gguf",       "m-Q8_0.gguf",   "mmproj-m-Q4_K_M.gguf",
                       "UD/m-UD-Q4_K_XL.gguf"};

TEST(FileChoice, AQuantIsAWordInEitherCase) {
  EXPECT_EQ(Chosen(kQuants, "q8_0"), "m-Q8_0.gguf");
  EXPECT_EQ(Chosen(kQuants, "Q4_K_S"), "m-Q4_K_S.gguf");
  EXPECT_EQ(Chosen(kQuants, "Q4_K_XL"), "UD/m-UD-Q4_K_XL.gguf");
  EXPECT_EQ(Chosen(kQuants, "m-Q8_0.gguf"), "m-Q8_0.gguf");
  for (const char* no_word : {"Q4_K", "Q4_NL", "Q8", "8_0"}) {
    EXPECT_NE(Chosen(kQuants, no_word).find("it has: "), std::string::npos) << no_word;
  }
}

TEST(FileChoice, WithoutAChoiceTheOnlyModelElseQ4KM) {
  EXPECT_EQ(Chosen(kQuants), "m-Q4_K_M.gguf");
  EXPECT_EQ(Chosen({"m-F16.gguf", "mmproj.gguf"}), "m-F16.gguf");
  EXPECT_EQ(Chosen({"config.json", "model.safetensors"}), "safetensors");
  EXPECT_EQ(Chosen({"config.json", "model.safetensors", "m-Q8_0.gguf"}),
            "a/b has 2 models; add ':' and one of: m-Q8_0.gguf, safetensors");
  EXPECT_EQ(Chosen({"config.json", "model.safetensors", "m-Q8_0.gguf"}, "safetensors"),
            "safetensors");
  EXPECT_EQ(Chosen({"x-Q4_K_M.gguf", "y-Q4_K_M.gguf"}, "q4_k_m"),
            "a/b has 2 models named 'q4_k_m'; add ':' and one of: x-Q4_K_M.gguf, y-Q4_K_M.gguf");
}

TEST(FileChoice, APlaceWithoutModelsSaysWhatWasMissing) {
  EXPECT_NE(Chosen({"config.json", "pytorch_model.bin"}).find("has no model that Kvasir reads"),
            std::string::npos);
  EXPECT_EQ(ChooseModel({}, {}, "a/b").error().code, Code::kNotFound);
}

TEST(FileChoice, PartsOfAFileAreOneModel) {
  const Names files = {"q/m-Q8_0-00002-of-00003.gguf", "q/m-Q8_0-00001-of-00003.gguf",
                       "q/m-Q8_0-00003-of-00003.gguf", "m-Q2_K.gguf"};
  const auto model = ChooseModel(files, "Q8_0", "a/b");
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->label, "q/m-Q8_0-00001-of-00003.gguf");
  EXPECT_EQ(model->files.size(), 3u);
  EXPECT_EQ(Chosen(files, files[0]), model->label);
  EXPECT_EQ(Chosen({files[0], files[2]}), "a/b has 2 of the 3 parts of " + files[0]);
}

TEST(FileChoice, PartsAreReadAsALoaderReadsThem) {
  EXPECT_EQ(Chosen({"m-00001-of-00002.GGUF", "m-00002-of-00002.GGUF"}), "m-00001-of-00002.GGUF");
  for (const char* not_a_part : {"-00001-of-00002.gguf", "m-00000-of-00002.gguf"}) {
    EXPECT_EQ(Chosen({not_a_part}), not_a_part);
  }
}

TEST(FileChoice, AFolderHasItsWeightsOnceAndTheTextThatIsRead) {
  const Names files = {"README.md",
                       "added_tokens.json",
                       "additional_chat_templates/rag.jinja",
                       "additional_chat_templates/notes.txt",
                       "additional_chat_templates/tool_use.jinja",
                       "chat_template.json",
                       "config.json",
                       "consolidated.safetensors",
                       "model-00001-of-00002.safetensors",
                       "model-00002-of-00002.safetensors",
                       "model-00003-of-00003.safetensors",
                       "model.fp32-00001-of-00002.safetensors",
                       "model.safetensors.index.json",
                       "onnx/config.json",
                       "qwen.tiktoken",
                       "part/rest.safetensors",
                       "tokenizer.json",
                       "vocab.json"};
  const Names shards = {"model-00001-of-00002.safetensors", "part/rest.safetensors",
                        "gone.safetensors"};
  EXPECT_TRUE(ChooseModel(files, {}, "a/b")->is_whole()) << "the index is not read yet";
  const auto model = ChooseParts(files, shards, {}, "a/b");
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->missing, Names{"gone.safetensors"});
  EXPECT_FALSE(model->is_whole());
  EXPECT_EQ(model->files,
            (Names{"added_tokens.json", "additional_chat_templates/rag.jinja",
                   "additional_chat_templates/tool_use.jinja", "chat_template.json", "config.json",
                   "model-00001-of-00002.safetensors", "model.safetensors.index.json",
                   "qwen.tiktoken", "part/rest.safetensors", "tokenizer.json"}));
  EXPECT_EQ(ChooseModel(files, {}, "a/b")->files,
            (Names{"added_tokens.json", "additional_chat_templates/rag.jinja",
                   "additional_chat_templates/tool_use.jinja", "chat_template.json", "config.json",
                   "model.safetensors.index.json", "qwen.tiktoken", "tokenizer.json"}));
  Names both = files;
  both.push_back("model.safetensors");
  EXPECT_TRUE(ChooseParts(both, shards, {}, "a/b")->is_whole()) << "the index is not read";
  EXPECT_EQ(ChooseParts(both, shards, {}, "a/b")->files,
            (Names{"added_tokens.json", "additional_chat_templates/rag.jinja",
                   "additional_chat_templates/tool_use.jinja", "chat_template.json", "config.json",
                   "qwen.tiktoken", "tokenizer.json", "model.safetensors"}));
}

}  // namespace
}  // namespace kvasir::hub
