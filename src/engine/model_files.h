// Where an engine's files are: the model, the folders of the cache and of the state; and the text
// parts that come with a model.
#pragma once

#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "import/importer.h"
#include "kvasir/status.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace kvasir {

// The model to load: `option`, else $KVASIR_MODEL, else the bundled models/kvasir-demo, looked for
// beside the executable (../../models, ../share/kvasir/models, models) and where it was built.
// kNotFound names what was looked at.
Result<std::filesystem::path> FindModel(const std::string& option);

// `option`, else $XDG_CACHE_HOME/kvasir (~/.cache), $XDG_STATE_HOME/kvasir (~/.local/state); empty
// when there is no home: a folder that others can write to is no place for either. Nothing is
// created.
std::filesystem::path CacheDir(const std::string& option);
std::filesystem::path StateDir(const std::string& option);
// Where a cache folder has the model images.
std::filesystem::path ImageFolder(const std::filesystem::path& cache_dir);

// The text side of a model; both absent when the model has no vocabulary that is read: ids only.
struct ModelText {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;
  std::string refusal;        // why there is no tokenizer although the model has a vocabulary
  std::vector<TokenId> ends;  // of an answer, beside those of the config and the tokenizer
  bool is_chatml = false;     // the model has no template, and chat_template is kChatMl
};
// What it is made from, apart from the model, so that it can be made beside the weights.
struct TextSource {
  std::filesystem::path path;  // of the model
  uint32_t vocab_size = 0;
  std::string tokenizer_json, tokenizer_config_json, special_tokens_json, chat_template;
  Result<std::optional<Vocabulary>> vocabulary;  // where tokenizer_json is empty
  std::vector<TokenId> ends_by_name;
};
TextSource TakeText(ImportedModel& model);
// What the plan counts a tokenizer by: the bytes of tokenizer.json, or of a vocabulary's lists.
uint64_t TokenizerBytes(const ImportedModel& model);
// kInvalidArgument when the tokenizer has ids that the model lacks. A vocabulary of a kind that is
// not read (kUnsupported) is no error: the model serves ids.
Result<ModelText> LoadText(const TextSource& source);
// The same in a thread of its own. kExhausted: the system refuses one.
Result<std::future<Result<ModelText>>> StartLoadText(TextSource source);

// What a model lacks to read text or chats, and what to do, for people.
std::vector<std::string> TextNotes(const ModelText& text);

// Tokens that end an answer: of the model's files and of its text; ascending, each once.
std::vector<TokenId> EndTokens(const ModelConfig& config, const ModelText& text);

}  // namespace kvasir
