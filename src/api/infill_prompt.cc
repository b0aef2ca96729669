#include "api/infill_prompt.h"

#include <fmt/format.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "api/openai_request.h"
#include "base/result.h"

namespace kvasir {
namespace {

using Texts = std::span<const std::string_view>;

// The marks of Qwen, StarCoder, Granite, DeepSeek, CodeLlama, GLM, Falcon, and their like.
constexpr std::string_view kPrefixes[] = {"<|fim_prefix|>",  "<fim-prefix>", "<fim_prefix>",
                                          "<｜fim▁begin｜>", "<PRE>",        "▁<PRE>",
                                          "<|code_prefix|>", "<|prefix|>"};
constexpr std::string_view kSuffixes[] = {"<|fim_suffix|>",  "<fim-suffix>", "<fim_suffix>",
                                          "<｜fim▁hole｜>",  "<SUF>",        "▁<SUF>",
                                          "<|code_suffix|>", "<|suffix|>"};
constexpr std::string_view kMiddles[] = {"<|fim_middle|>",  "<fim-middle>", "<fim_middle>",
                                         "<｜fim▁end｜>",   "<MID>",        "▁<MID>",
                                         "<|code_middle|>", "<|middle|>"};
constexpr std::string_view kRepos[] = {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>",
                                       "<reponame>"};
constexpr std::string_view kFiles[] = {"<|file_sep|>", "<file_sep>"};
constexpr std::string_view kPads[] = {"<|fim_pad|>", "<fim-pad>", "<fim_pad>"};

constexpr std::string_view kProject = "project\n", kFile = "file\n";
constexpr std::string_view kDivider = "\n\n--- file ---\n\n";

std::optional<TokenId> Find(std::optional<TokenId> named, Texts texts, const Tokenizer& tokenizer) {
  for (const std::string_view text : texts) {
    if (!named) named = tokenizer.IdOf(text);
  }
  return named;
}

// Joins the parts of a prompt. A text is encoded by itself, as it goes on from what is before it.
class PromptWriter {
 public:
  PromptWriter(const ModelView& model, size_t max_tokens) : model_(model) {
    options_.add_special = options_.parse_special = options_.at_start = false;
    options_.max_tokens = max_tokens;
  }

  void Mark(std::optional<TokenId> id) {
    if (id) ids_.push_back(*id);
  }
  Status Text(std::string_view text, const std::string& field) {
    if (text.empty()) return {};
    KV_ASSIGN(const std::vector<TokenId> more, EncodeText(text, field, options_, model_));
    ids_.insert(ids_.end(), more.begin(), more.end());
    return {};
  }
  // Adds what the tokenizer puts before a text: BOS, if it does.
  Status Begin() {
    KV_ASSIGN(const std::vector<TokenId> alone, EncodeText("", "infill", {}, model_));
    if (!alone.empty() && alone.front() == model_.tokenizer->bos()) Mark(alone.front());
    return {};
  }
  std::vector<TokenId> Take() { return std::move(ids_); }

 private:
  const ModelView& model_;
  EncodeOptions options_;
  std::vector<TokenId> ids_;
};

Status WriteFile(const JsonValue& file, size_t index, const ModelView& model, PromptWriter& writer,
                 JsonFields& body) {
  const std::string path = fmt::format("input_extra[{}]", index);
  if (!file.is_object()) {
    return FailField(Code::kInvalidArgument, path, "is {}, not an object", KindOf(file));
  }
  JsonFields fields(file, path + ".");
  std::string_view name = "file", text;
  fields.Text("filename", &name);
  fields.Text("text", &text);
  if (!fields.Has("text")) fields.Fail("text", "is missing");
  if (fields.error()) return tl::unexpected(*fields.error());
  body.TakeUnread(fields);
  if (!model.fim.file) {
    KV_TRY(writer.Text(kDivider, path));
    return writer.Text(text, path + ".text");
  }
  writer.Mark(model.fim.file);
  KV_TRY(writer.Text(std::string(name) + "\n", path + ".filename"));
  return writer.Text(text, path + ".text");
}

}  // namespace

FimTokens FindFimTokens(const FimTokens& named, const Tokenizer& tokenizer) {
  return {.prefix = Find(named.prefix, kPrefixes, tokenizer),
          .suffix = Find(named.suffix, kSuffixes, tokenizer),
          .middle = Find(named.middle, kMiddles, tokenizer),
          .repo = Find(named.repo, kRepos, tokenizer),
          .file = Find(named.file, kFiles, tokenizer),
          .pad = Find(named.pad, kPads, tokenizer)};
}

Status CheckInfill(const ModelView& model) {
  if (!model.tokenizer) return tl::unexpected(NoTextError("infill", model));
  std::string missing;
  const auto check = [&](const std::optional<TokenId>& id, std::string_view name) {
    if (!id) missing += (missing.empty() ? "" : ", ") + std::string(name);
  };
  check(model.fim.prefix, "prefix");
  check(model.fim.suffix, "suffix");
  check(model.fim.middle, "middle");
  if (missing.empty()) return {};
  return FailField(Code::kUnsupported, "infill",
                   "this model's vocabulary has no token for: {} (such as <|fim_prefix|>); use a "
                   "model that was trained to fill in the middle",
                   missing);
}

Result<std::vector<TokenId>> InfillPrompt(JsonFields& fields, const ModelView& model,
                                          size_t max_tokens) {
  std::string_view prefix, suffix, prompt;
  fields.Text("input_prefix", &prefix);
  fields.Text("input_suffix", &suffix);
  fields.Text("prompt", &prompt);
  for (const char* name : {"input_prefix", "input_suffix"}) {
    if (!fields.Has(name)) fields.Fail(name, "is missing");
  }
  const JsonValue* extra = fields.Find("input_extra");
  if (extra && !extra->is_array()) {
    fields.Fail("input_extra",
                fmt::format("is {}, not a list of {{\"filename\", \"text\"}}", KindOf(*extra)));
  }
  if (fields.error()) return tl::unexpected(*fields.error());
  PromptWriter writer(model, max_tokens);
  KV_TRY(writer.Begin());
  writer.Mark(model.fim.repo);
  if (model.fim.repo) KV_TRY(writer.Text(kProject, "infill"));
  const auto files = extra ? extra->items() : std::span<const JsonValue>();
  for (size_t i = 0; i < files.size(); ++i) KV_TRY(WriteFile(files[i], i, model, writer, fields));
  writer.Mark(model.fim.file);
  if (model.fim.file) KV_TRY(writer.Text(kFile, "infill"));
  writer.Mark(model.fim.prefix);
  KV_TRY(writer.Text(prefix, "input_prefix"));
  KV_TRY(writer.Text(prompt, "prompt"));
  writer.Mark(model.fim.suffix);
  KV_TRY(writer.Text(suffix, "input_suffix"));
  writer.Mark(model.fim.middle);
  return writer.Take();
}

void AddInfillEnds(const ModelView& model, GenerateRequest* request) {
  for (const auto& mark : {model.fim.repo, model.fim.file, model.fim.pad}) {
    if (mark) request->stop_ids.push_back(*mark);
  }
}

}  // namespace kvasir
