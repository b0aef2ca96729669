// Tokenizer over standard input, for tests that compare it with other implementations. One JSON
// object per line: {"tokenizer": folder, tokenizer.json or GGUF file, "text": ..., "add_special",
// "parse_special", "source": the text's language, of a translation model, "ids": to decode instead
// of the text's own}, or for a chat {"tokenizer",
// "template", "messages"} instead of a text. Answers {"ids", "decoded", "decoded_all", "streamed",
// "streamed_all"} or {"error"}, one per line. With `speed TOKENIZER
// FILE` it prints the megabytes of FILE that Encode processes per second.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json_tree.h"
#include "chat/chat_template.h"
#include "import/gguf_vocabulary.h"
#include "import/tokenizer_files.h"
#include "text/languages.h"
#include "text/tokenizer.h"

namespace {

using kvasir::TokenId;
using kvasir::Tokenizer;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

kvasir::Result<std::unique_ptr<Tokenizer>> LoadGguf(const std::string& path) {
  const std::string bytes = ReadFile(path);
  const auto gguf = kvasir::ParseGguf(std::as_bytes(std::span(bytes)), path);
  if (!gguf) return tl::unexpected(gguf.error());
  const auto vocabulary = kvasir::ReadGgufVocabulary(*gguf, path);
  if (!vocabulary) return tl::unexpected(vocabulary.error());
  if (!*vocabulary) return kvasir::Tokenizer::Parse("", "");
  return kvasir::Tokenizer::Make(**vocabulary);
}

// Loads a folder, of whose config.json only vocab_size is read.
kvasir::Result<std::unique_ptr<Tokenizer>> LoadFolder(const std::string& path) {
  kvasir::ImportedModel model;
  model.vocabulary = std::nullopt;
  const auto config = nlohmann::json::parse(ReadFile(path + "/config.json"), nullptr, false);
  if (config.is_object()) model.config.vocab_size = config.value("vocab_size", 0u);
  if (const auto read = kvasir::ReadTokenizerFiles(path, model); !read) {
    return tl::unexpected(read.error());
  }
  if (!model.vocabulary) return tl::unexpected(model.vocabulary.error());
  if (*model.vocabulary) return Tokenizer::Make(**model.vocabulary);
  return Tokenizer::Parse(model.tokenizer_json, model.tokenizer_config_json);
}

const Tokenizer* Load(const std::string& path, std::string* error) {
  static std::map<std::string, std::unique_ptr<Tokenizer>> loaded;
  auto& slot = loaded[path];
  if (slot == nullptr) {
    auto result = path.ends_with(".gguf")   ? LoadGguf(path)
                  : path.ends_with(".json") ? Tokenizer::Parse(ReadFile(path), "")
                                            : LoadFolder(path);
    if (!result) {
      *error = result.error().message;
      return nullptr;
    }
    slot = std::move(*result);
  }
  return slot.get();
}

std::string Streamed(const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                     kvasir::SpecialTokens special) {
  kvasir::TextStream stream(tokenizer, special);
  std::string all;
  for (TokenId id : ids) {
    const std::string piece = stream.Append(id);
    // Half a character cannot be a JSON string.
    if (nlohmann::json(piece).dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore) !=
        nlohmann::json(piece).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) {
      return "half a character";
    }
    all += piece;
  }
  return all + stream.Finish();
}

// Returns the ids of a chat, with a generation prompt.
kvasir::Result<std::vector<TokenId>> EncodeChat(const Tokenizer& tokenizer,
                                                const nlohmann::json& request) {
  const auto chat_template = kvasir::ChatTemplate::Parse(request.value("template", ""));
  if (!chat_template) return tl::unexpected(chat_template.error());
  kvasir::JsonTree tree;
  const auto messages = tree.Parse(request["messages"].dump());
  if (!messages) return tl::unexpected(kvasir::Error{kvasir::Code::kInvalidArgument, "messages"});
  const auto chat = (*chat_template)
                        ->Render(*messages, {}, {},
                                 {.bos_token = tokenizer.bos_text(),
                                  .eos_token = tokenizer.eos_text(),
                                  .now_unix_s = 1700000000});
  if (!chat) return tl::unexpected(chat.error());
  return tokenizer.Encode(
      chat->text, {.add_special = false, .literal = chat->literal, .written = *chat->written});
}

// Returns the ids of a source, as the folder's tokenizer_config.json wants it.
kvasir::Result<std::vector<TokenId>> EncodeTranslation(const Tokenizer& tokenizer,
                                                       const nlohmann::json& request) {
  const auto language = kvasir::Languages::Of(tokenizer).Find(request.value("source", ""));
  if (!language) return tl::unexpected(language.error());
  const auto place =
      kvasir::LanguagePlaceOf(ReadFile(request.value("tokenizer", "") + "/tokenizer_config.json"));
  if (!place) return tl::unexpected(place.error());
  return kvasir::EncodeSource(tokenizer, request.value("text", ""),
                              FrameOf(tokenizer, language->id, *place), SIZE_MAX);
}

nlohmann::json Answer(const std::string& line) {
  const auto request = nlohmann::json::parse(line, nullptr, false);
  if (!request.is_object()) return {{"error", "not a JSON object"}};
  std::string error;
  const Tokenizer* tokenizer = Load(request.value("tokenizer", ""), &error);
  if (tokenizer == nullptr) return {{"error", error}};
  std::vector<TokenId> ids = request.value("ids", std::vector<TokenId>());
  if (!request.contains("ids")) {
    kvasir::EncodeOptions options;
    options.add_special = request.value("add_special", true);
    options.parse_special = request.value("parse_special", true);
    auto encoded = request.contains("messages") ? EncodeChat(*tokenizer, request)
                   : request.contains("source")
                       ? EncodeTranslation(*tokenizer, request)
                       : tokenizer->Encode(request.value("text", ""), options);
    if (!encoded) return {{"error", encoded.error().message}};
    ids = std::move(*encoded);
  }
  return {{"ids", ids},
          {"decoded", tokenizer->Decode(ids)},
          {"decoded_all", tokenizer->Decode(ids, kvasir::SpecialTokens::kShow)},
          {"streamed", Streamed(*tokenizer, ids, kvasir::SpecialTokens::kSkip)},
          {"streamed_all", Streamed(*tokenizer, ids, kvasir::SpecialTokens::kShow)}};
}

int Speed(const std::string& tokenizer_path, const std::string& text_path) {
  std::string error;
  const Tokenizer* tokenizer = Load(tokenizer_path, &error);
  const std::string text = ReadFile(text_path);
  if (tokenizer == nullptr || text.empty()) {
    std::fprintf(stderr, "text_tool: %s\n", tokenizer == nullptr ? error.c_str() : "no text");
    return 2;
  }
  double best = 1e9;
  size_t num_ids = 0;
  for (int run = 0; run < 5; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    num_ids = tokenizer->Encode(text)->size();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::min(best, seconds.count());
  }
  std::printf("bytes %zu ids %zu seconds %.4f MB/s %.1f\n", text.size(), num_ids, best,
              static_cast<double>(text.size()) / best / 1e6);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "speed") return Speed(argv[2], argv[3]);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << Answer(line).dump(-1, ' ', true) << "\n";
  }
  return 0;
}
