// Finds an engine's model, and loads the text parts of a model.
#pragma once

#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chat/chat_template.h"
#include "import/importer.h"
#include "kvasir/status.h"
#include "text/tokenizer.h"

namespace kvasir {

// Returns the model to load: `option`, else $KVASIR_MODEL, else the bundled one, which either may
// call kvasir-demo unless a file or folder has that name. kNotFound names the places that were
// searched.
Result<std::filesystem::path> FindModel(const std::optional<std::string>& option);
// Finds kvasir-demo as seen from the folder of an executable: in ../share/kvasir/models when it is
// installed, else in models (each build folder links to it), else in ../../models (of a repository
// that was copied without that link).
Result<std::filesystem::path> FindBundledModel(const std::filesystem::path& executable_folder);

// Returns the folder of the model images inside a cache folder.
std::filesystem::path ImageFolder(const std::filesystem::path& cache_dir);

// The text side of a model; both absent when the model has no vocabulary that is read: ids only.
struct ModelText {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;
  // Why there is no tokenizer, and what to do; names files without their folder. Absent: there is
  // one.
  std::optional<std::string> no_text;
  std::vector<TokenId> ends;  // of an answer, beside those of the config and the tokenizer
  std::optional<std::string> unknown_template;  // ModelCard::unknown_template
  bool is_chatml = false;  // the model has no template, and chat_template is ChatML
};
// The sources of ModelText, copied from the model, so that another thread can load it.
struct TextSource {
  std::filesystem::path path;  // of the model
  uint32_t vocab_size = 0;
  std::string tokenizer_json, tokenizer_config_json, special_tokens_json, chat_template;
  std::map<std::string, std::string> named_templates;
  Result<std::optional<Vocabulary>> vocabulary;  // where tokenizer_json is empty
  std::vector<TokenId> ends_by_name;
};
TextSource TakeText(ImportedModel& model);
// Returns the bytes from which the plan estimates a tokenizer's memory: of tokenizer.json, or of a
// vocabulary's lists.
uint64_t TokenizerBytes(const ImportedModel& model);
// kInvalidArgument when the tokenizer has ids that the model lacks. A vocabulary of an unsupported
// kind (kUnsupported) is not an error: the model then serves token ids only.
Result<ModelText> LoadText(const TextSource& source);
// Starts LoadText in a new thread. kExhausted when the system refuses one.
Result<std::future<Result<ModelText>>> StartLoadText(TextSource source);

// Returns a sentence for each part that the model lacks for text or chats, and what to do. Chats
// are not for a model that `translates`.
std::vector<std::string> TextNotes(const ModelText& text, bool translates = false);

// Returns the tokens that end an answer, from the model's files and from its text, ascending and
// unique.
std::vector<TokenId> EndTokens(const ModelConfig& config, const ModelText& text);

}  // namespace kvasir
