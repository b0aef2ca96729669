#include "api/embedding_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/adapter_fields.h"
#include "api/embedding_writer.h"
#include "api/openai_request.h"
#include "api/raw_prompts.h"
#include "api/request_limits.h"
#include "base/result.h"

namespace kvasir {
namespace {

constexpr std::string_view kEmbeddingIds[] = {"input"};
constexpr uint32_t kInputsAtOnce = 64;  // the queue has room for others beside them

// Returns the inputs of a field: one, or those of a list.
Result<std::vector<const JsonValue*>> ListInputs(JsonFields& fields, const char* name) {
  const JsonValue* input = fields.Find(name);
  if (!input) return FailField(Code::kInvalidArgument, name, "is missing");
  std::vector<const JsonValue*> list;
  if (input->is_string() || input->kind() == JsonValue::Kind::kIds) {
    list.push_back(input);
  } else if (input->is_array()) {
    for (const JsonValue& one : input->items()) list.push_back(&one);
  } else {
    return FailField(Code::kInvalidArgument, name,
                     "is {}, not a text, a list of token ids, or a list of those", KindOf(*input));
  }
  if (list.empty()) return FailField(Code::kInvalidArgument, name, "is an empty list");
  if (list.size() <= kMaxInputs) return list;
  return FailField(Code::kInvalidArgument, name, "has {} inputs; at most {} are embedded at once",
                   list.size(), kMaxInputs);
}

Result<std::vector<TokenId>> IdsOfInput(const JsonValue& input, const std::string& field,
                                        const EncodeOptions& options, const ModelView& model) {
  if ((input.is_string() || input.is_array()) && input.size() == 0) {
    return FailField(Code::kInvalidArgument, field, "is empty; give at least one token");
  }
  if (input.is_string()) return EncodeText(input.text(), field, options, model);
  if (IsIds(input)) return ToTokenIds(input, model.vocab_size, field);
  return FailField(Code::kInvalidArgument, field,
                   "is {} where a text or a list of token ids must be", KindOf(input));
}

// Reads the body of one request, field by field.
class EmbeddingReader {
 public:
  EmbeddingReader(const JsonValue& body, const ModelView& model) : fields_(body), model_(model) {}

  JsonFields& fields() { return fields_; }
  // Tells whether there is nothing to embed, as in a request that loads a model.
  bool IsWithout(const char* name) {
    const JsonValue* input = fields_.Find(name);
    return !input || ((input->is_string() || input->is_array()) && input->size() == 0);
  }
  Status ReadModel(std::string_view name) {
    KV_ASSIGN(model_name_, CheckModel(name, model_));
    return {};
  }
  void ReadDimensions(EmbeddingForm* form);
  // Makes a request of each input of the field.
  Result<GenerationCall> End(const char* name, EmbeddingForm form);
  GenerationCall EndWithout(EmbeddingForm form) {
    return {.requests = {},
            .spec = {.model = model_name_},
            .writer = std::make_unique<EmbeddingWriter>(form, 0),
            .slot = {},
            .unseen = {}};
  }

 private:
  JsonFields fields_;
  const ModelView& model_;
  std::string model_name_;
};

void EmbeddingReader::ReadDimensions(EmbeddingForm* form) {
  form->dimensions = model_.hidden_size;
  fields_.Unsigned("dimensions", 1, model_.hidden_size, &form->dimensions);
}

Result<GenerationCall> EmbeddingReader::End(const char* name, EmbeddingForm form) {
  if (!model_.no_embeddings.empty()) {
    return FailField(Code::kUnsupported, "model", "embeds no texts: {}", model_.no_embeddings);
  }
  GenerateRequest request;
  ReadRunFields(fields_, &request);
  ReadAdapters(fields_, model_name_, model_, &request);
  EncodeOptions options;
  options.max_tokens = model_.max_text_tokens();
  fields_.Bool("add_special_tokens", &options.add_special);
  fields_.Bool("parse_special", &options.parse_special);
  std::string user;
  fields_.String("user", &user);  // the tenant comes from the credential, never from here
  RefuseUnsupported(fields_);
  if (fields_.error()) return tl::unexpected(*fields_.error());
  KV_ASSIGN(const auto list, ListInputs(fields_, name));
  request.max_tokens = 0;
  request.embeds = model_.pooling;
  if (request.embeds == Pooling::kMean) request.reuse = Reuse::kNothing;
  if (!request.retention) request.retention = RetentionChoice{};
  request.ignored = fields_.Unread();
  GenerationCall call = EndWithout(form);
  call.spec.id_prefix = "embd-";
  call.at_once = kInputsAtOnce;
  for (size_t i = 0; i < list.size(); ++i) {
    const bool is_listed = list.size() > 1 || list[0] != fields_.Find(name);
    const std::string field = is_listed ? fmt::format("{}[{}]", name, i) : name;
    KV_ASSIGN(std::vector<TokenId> ids, IdsOfInput(*list[i], field, options, model_));
    KV_TRY(CheckLength(ids.size(), request, field, model_));
    call.requests.emplace_back(request).prompt = std::move(ids);
  }
  call.writer = std::make_unique<EmbeddingWriter>(form, call.requests.size());
  return call;
}

}  // namespace

Result<GenerationCall> ParseEmbeddingRequest(std::string_view body, const ModelView& model) {
  KV_ASSIGN(const JsonBody parsed, ParseBody(body, kEmbeddingIds));
  EmbeddingReader reader(parsed.fields, model);
  JsonFields& fields = reader.fields();
  std::string_view name = "default", encoding = "float";
  fields.Text("model", &name);
  fields.Text("encoding_format", &encoding);
  if (encoding != "float" && encoding != "base64") {
    fields.Refuse("encoding_format", R"("float" or "base64")");
  }
  EmbeddingForm form{.is_base64 = encoding == "base64"};
  reader.ReadDimensions(&form);
  if (fields.error()) return tl::unexpected(*fields.error());
  KV_TRY(reader.ReadModel(name));
  return reader.End("input", form);
}

namespace {

Result<GenerationCall> ParseOllama(std::string_view body, const ModelView& model, const char* input,
                                   EmbeddingForm form) {
  KV_ASSIGN(const JsonBody parsed, ParseBody(body, kEmbeddingIds));
  EmbeddingReader reader(parsed.fields, model);
  JsonFields& fields = reader.fields();
  std::string_view name = "default";
  fields.Text("model", &name);
  reader.ReadDimensions(&form);
  fields.Find("keep_alive");  // a model stays loaded
  if (fields.error()) return tl::unexpected(*fields.error());
  KV_TRY(reader.ReadModel(name));
  if (reader.IsWithout(input)) return reader.EndWithout(form);
  return reader.End(input, form);
}

}  // namespace

Result<GenerationCall> ParseOllamaEmbed(std::string_view body, const ModelView& model) {
  return ParseOllama(body, model, "input", {.shape = EmbeddingForm::Shape::kOllama});
}

Result<GenerationCall> ParseOllamaEmbeddings(std::string_view body, const ModelView& model) {
  return ParseOllama(body, model, "prompt", {.shape = EmbeddingForm::Shape::kOllamaOne});
}

}  // namespace kvasir
