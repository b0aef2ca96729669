#include "engine/model_files.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/ascii.h"
#include "base/mapped_file.h"
#include "base/model_tag.h"
#include "base/result.h"
#include "base/start_thread.h"
#include "base/system_error.h"
#include "base/user_folders.h"
#include "chat/builtin_templates.h"
#include "kvasir/images.h"
#include "model/model_image.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBundledModel = "kvasir-demo";
constexpr std::string_view kChatMlStart = "<|im_start|>", kChatMlEnd = "<|im_end|>";

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

Result<fs::path> FindModel(const std::optional<std::string>& option) {
  const std::string named = option ? *option : Env("KVASIR_MODEL");
  std::error_code error;
  if (!named.empty()) {
    KV_ASSIGN(const bool exists, Exists(named));
    if (exists) return fs::path(named);
  }
  if (!named.empty() && WithoutLatest(named) != kBundledModel) {
    return FailField(
        Code::kNotFound, option ? "model" : "KVASIR_MODEL",
        "no file or folder {}; give a Hugging Face folder, a GGUF file, or the owner/name "
        "of a model ('kvasir pull' fetches it)",
        named);
  }
  const fs::path executable = fs::read_symlink("/proc/self/exe", error);
  if (error) {
    const bool missing = error == std::errc::no_such_file_or_directory;
    return Fail(missing ? Code::kNotFound : Code::kIoError,
                "model: /proc/self/exe leads nowhere ({}), so that the bundled model cannot be "
                "found beside the executable: mount /proc, or give --model",
                error.message());
  }
  return FindBundledModel(executable.parent_path());
}

Result<fs::path> FindBundledModel(const fs::path& executable_folder) {
  std::error_code error;
  std::string looked;
  for (const char* folder : {"../share/kvasir/models", "models", "../../models"}) {
    const fs::path candidate = executable_folder / folder / kBundledModel;
    const Result<bool> exists = Exists(candidate / "config.json");
    // An inaccessible folder counts as one without the model.
    if (!exists && exists.error().code != Code::kPermissionDenied) {
      return tl::unexpected(exists.error());
    }
    if (exists && *exists) {
      fs::path path = fs::weakly_canonical(candidate, error);
      if (error) return FailErrno(error.value(), "model: cannot follow {}", candidate.string());
      return path;
    }
    looked += (looked.empty() ? "" : ", ") + candidate.lexically_normal().string();
  }
  return Fail(Code::kNotFound, "model: the bundled model was not found in {}; give --model",
              looked);
}

fs::path ImageFolder(const fs::path& cache_dir) { return cache_dir / "images"; }

std::optional<std::string> ImageFolderOf(const std::optional<std::string>& cache_dir) {
  const fs::path folder = CacheDir(cache_dir);
  if (folder.empty()) return std::nullopt;
  return ImageFolder(folder).string();
}

std::vector<ImageEntry> ListImages(const std::optional<std::string>& cache_dir) {
  std::vector<ImageEntry> entries;
  const std::optional<std::string> folder = ImageFolderOf(cache_dir);
  if (!folder) return entries;
  for (ImageListing& image : ModelImages::List(*folder)) {
    ImageEntry& entry = entries.emplace_back();
    entry.path = image.path.string();
    if (!image.title.model.empty()) {
      entry.model = std::move(image.title.model);
      entry.weights = std::move(image.title.weights);
    }
    entry.file_bytes = image.file_bytes;
    entry.used_s = image.used_ns / 1'000'000'000;
  }
  return entries;
}

TextSource TakeText(ImportedModel& model) {
  return {model.path,
          model.config.vocab_size,
          std::move(model.tokenizer_json),
          std::move(model.tokenizer_config_json),
          std::move(model.special_tokens_json),
          std::move(model.chat_template),
          std::move(model.named_templates),
          std::exchange(model.vocabulary, std::nullopt),
          std::move(model.ends_by_name)};
}

uint64_t TokenizerBytes(const ImportedModel& model) {
  if (!model.tokenizer_json.empty()) return model.tokenizer_json.size();
  return model.vocabulary && *model.vocabulary ? (*model.vocabulary)->memory_bytes() : 0;
}

namespace {

Status CheckIds(const TextSource& source, uint32_t vocab_size) {
  if (vocab_size <= source.vocab_size) return {};
  return Fail(Code::kInvalidArgument,
              "{}: the tokenizer has ids up to {}, but the model's vocabulary has {} tokens: it "
              "belongs to another model",
              source.path.string(), vocab_size - 1, source.vocab_size);
}

// Returns a message about a file of the model, for readers who need not know the folder.
std::string WithoutFolder(std::string message, const fs::path& model) {
  std::error_code error;
  const fs::path folder = fs::is_directory(model, error) ? model : model.parent_path();
  const std::string prefix = (folder / "").string();
  return message.starts_with(prefix) ? message.substr(prefix.size()) : message;
}

// nullptr: the model has none.
Result<std::unique_ptr<Tokenizer>> MakeTokenizer(const TextSource& source) {
  if (!source.tokenizer_json.empty()) {
    return Tokenizer::Parse(source.tokenizer_json, source.tokenizer_config_json,
                            source.special_tokens_json);
  }
  if (!source.vocabulary) return tl::unexpected(source.vocabulary.error());
  if (!*source.vocabulary) return nullptr;
  KV_TRY(CheckIds(source, (*source.vocabulary)->vocab_size()));  // before merges are built
  return Tokenizer::Make(**source.vocabulary);
}

// Tells whether a template has no place to fill in, as in some GGUF files: "llama2".
bool IsBareWord(std::string_view source) {
  return !source.empty() && source.find("{{") == source.npos && source.find("{%") == source.npos;
}

// Returns whether a template that writes `text` gets its token.
bool ReadsAsToken(const Tokenizer& tokenizer, std::string_view text) {
  const std::optional<TokenId> id = tokenizer.IdOf(text);
  const auto ids = tokenizer.Encode(text, {.add_special = false});
  return id && ids && ids->size() == 1 && ids->front() == *id;
}

}  // namespace

Result<ModelText> LoadText(const TextSource& source) {
  ModelText text;
  text.ends = source.ends_by_name;
  auto tokenizer = MakeTokenizer(source);
  if (!tokenizer) {
    if (!source.tokenizer_json.empty() || tokenizer.error().code != Code::kUnsupported) {
      return tl::unexpected(std::move(tokenizer.error()));
    }
    text.no_text = WithoutFolder(tokenizer.error().message, source.path);
    return text;
  }
  if (*tokenizer == nullptr) {
    text.no_text =
        "the model has no tokenizer (tokenizer.json, tokenizer.model, *.tiktoken or the GGUF "
        "file's own); put one into its folder";
    return text;
  }
  text.tokenizer = std::move(*tokenizer);
  KV_TRY(CheckIds(source, text.tokenizer->vocab_size()));
  if (IsBareWord(source.chat_template)) {
    const std::string_view name = Trimmed(source.chat_template);
    const auto builtin = BuiltinTemplate(name);
    if (!builtin) {
      text.unknown_template = name;
      return text;
    }
    KV_ASSIGN(text.chat_template, ChatTemplate::Parse(*builtin, source.named_templates));
  } else if (!source.chat_template.empty()) {
    auto parsed = ChatTemplate::Parse(source.chat_template, source.named_templates);
    if (!parsed) {
      return Fail(parsed.error().code, "{}: {}", source.path.string(), parsed.error().message);
    }
    text.chat_template = std::move(*parsed);
  } else if (ReadsAsToken(*text.tokenizer, kChatMlStart) &&
             ReadsAsToken(*text.tokenizer, kChatMlEnd)) {
    KV_ASSIGN(text.chat_template, ChatTemplate::Parse(*BuiltinTemplate("chatml")));
    text.is_chatml = true;
    text.ends.push_back(*text.tokenizer->IdOf(kChatMlEnd));
  }
  return text;
}

Result<std::future<Result<ModelText>>> StartLoadText(TextSource source) {
  try {
    return std::async(std::launch::async, &LoadText, std::move(source));
  } catch (const std::system_error& e) {
    return NoThread("tokenizer", e);
  }
}

std::vector<std::string> TextNotes(const ModelText& text, bool translates) {
  if (text.no_text) return {"no text: " + *text.no_text + ", or send token ids"};
  if (translates) return {"translations (/v1/translations, /translate), no chats"};
  if (text.is_chatml) {
    return {
        "chats: the model has no chat template; ChatML is used, since the vocabulary has "
        "<|im_start|> and <|im_end|>; give another by --chat-template-file"};
  }
  if (text.unknown_template) {
    return {"no chats: the model's chat template is '" + *text.unknown_template +
            "', which is not the name of a built-in one; give one with --chat-template-file"};
  }
  if (text.chat_template == nullptr) {
    return {
        "no chats: the model has no chat template; give one with --chat-template-file, or send "
        "plain "
        "prompts (/v1/completions)"};
  }
  return {};
}

std::vector<TokenId> EndTokens(const ModelConfig& config, const ModelText& text) {
  std::vector<TokenId> ends = config.eos;
  const Tokenizer* tokenizer = text.tokenizer.get();
  if (tokenizer != nullptr && tokenizer->eos()) ends.push_back(*tokenizer->eos());
  for (TokenId id : text.ends) {
    if (static_cast<uint32_t>(id) < config.vocab_size) ends.push_back(id);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

}  // namespace kvasir
