#include "server/text_routes.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "api/chat_tokens.h"
#include "api/logprobs_json.h"
#include "api/openai_request.h"
#include "http/errors.h"
#include "http/json_body.h"
#include "server/request_schema.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr size_t kMaxTokens = size_t{1} << 20;  // of /tokenize and /detokenize

// {"id", "piece"} of a token.
json PieceJson(TokenId id, const Tokenizer* tokenizer) {
  const TokenSpelling spelling = SpellToken(tokenizer, id);
  json piece = spelling.text;
  if (spelling.text != spelling.bytes) {
    piece = json::array();  // no whole character: its bytes, as llama.cpp sends them
    for (const char c : spelling.bytes) piece.push_back(static_cast<unsigned char>(c));
  }
  return {{"id", id}, {"piece", std::move(piece)}};
}

// `out`, then the ids, or the PieceJson of each, and the end of the object.
Parts TokensText(std::string out, std::vector<TokenId> ids, const Tokenizer* pieces_of) {
  out += "\"tokens\":[";
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ',';
    out += pieces_of ? Dump(PieceJson(ids[i], pieces_of)) : std::to_string(ids[i]);
    if (out.size() >= kPartBytes) co_yield out;
  }
  out += "]}";
  co_yield out;
}

// Yields an object whose keys all have the same text.
Parts SameText(std::vector<std::string> keys, std::string text) {
  std::string out;
  for (const std::string& key : keys) {
    out += (out.empty() ? "{\"" : "\",\"") + key + "\":\"";
    std::string_view rest = text;
    while (!rest.empty()) {
      AppendEscaped(&rest, &out);
      if (out.size() >= kPartBytes) co_yield out;
    }
  }
  out += "\"}";
  co_yield out;
}

HttpResponse TextResponse(std::vector<std::string> keys, std::string text) {
  HttpResponse response;
  response.rest_bytes = text.capacity();
  response.rest = SameText(std::move(keys), std::move(text));
  return response;
}

// Returns the ids of the text that a body has under llama.cpp's name or vLLM's.
Result<std::vector<TokenId>> TextTokens(JsonFields& fields, const ModelView& model) {
  const char* name = fields.Has("content") || !fields.Has("prompt") ? "content" : "prompt";
  std::string_view text;
  fields.Text("prompt", &text);
  fields.Text("content", &text);  // where both are there
  if (!fields.Has(name)) fields.Fail(name, "is missing");
  // Each name with its server's default: llama.cpp adds none, vLLM adds them.
  EncodeOptions options;
  options.add_special = name == std::string_view("prompt");
  options.max_tokens = kMaxTokens;
  fields.Bool("add_special_tokens", &options.add_special);
  fields.Bool("add_special", &options.add_special);
  fields.Bool("parse_special", &options.parse_special);
  if (fields.error()) return tl::unexpected(*fields.error());
  return EncodeText(text, name, options, model);
}

Outcome Tokenize(const Call& call) {
  auto body = ParseBody(call.request.body, kChatIds);
  if (!body) return ErrorResponse(body.error());
  JsonFields fields(body->fields);
  bool with_pieces = false;
  fields.Bool("with_pieces", &with_pieces);
  if (fields.error()) return ErrorResponse(*fields.error());
  // vLLM's form of a chat: the prompt that /v1/chat/completions makes of the same body.
  const bool is_chat = fields.Has("messages") && !fields.Has("content") && !fields.Has("prompt");
  auto ids = is_chat ? ChatTokens(fields, &body->tree, call.model) : TextTokens(fields, call.model);
  if (!ids) return ErrorResponse(ids.error());
  ids->shrink_to_fit();
  HttpResponse response;
  response.rest_bytes = ids->size() * sizeof(TokenId);
  std::string counts =
      fmt::format(R"({{"count":{},"max_model_len":{},)", ids->size(), call.model.ctx_size);
  response.rest =
      TokensText(std::move(counts), std::move(*ids), with_pieces ? call.model.tokenizer : nullptr);
  return response;
}

Outcome Detokenize(const Call& call) {
  const auto body = ParseBody(call.request.body, kDetokenizeIds);
  if (!body) return ErrorResponse(body.error());
  JsonFields fields(body->fields);
  std::vector<TokenId> ids;
  fields.Ids("tokens", call.model.vocab_size, &ids);
  if (!fields.Has("tokens")) fields.Fail("tokens", "is missing");
  if (!call.model.tokenizer) fields.Fail("tokens", call.model.no_text);
  if (fields.error()) return ErrorResponse(*fields.error());
  if (ids.size() > kMaxTokens) {
    fields.Fail("tokens", fmt::format("has {} ids; at most {} are taken", ids.size(), kMaxTokens));
    return ErrorResponse(*fields.error());
  }
  auto text = DecodeIds(ids, "tokens", call.model);
  if (!text) return ErrorResponse(text.error());
  return TextResponse({"content", "prompt"}, std::move(*text));
}

Outcome ApplyTemplate(const Call& call) {
  auto body = ParseBody(call.request.body, kChatIds);
  if (!body) return ErrorResponse(body.error());
  JsonFields fields(body->fields);
  auto chat = RenderMessages(fields, &body->tree, call.model);
  if (!chat) return ErrorResponse(chat.error());
  return TextResponse({"prompt"}, std::move(chat->text));
}

}  // namespace

void AddTextRoutes(RouteTable* table) {
  Route row{.path = "/tokenize",
            .method = "POST",
            .handler = Tokenize,
            .access = Access::kTenant,
            .work = Route::kPrepared};
  row.description = {.summary = "Text, or the messages of a chat, to token ids.",
                     .properties = R"("content":{"type":"string"},"prompt":{"type":"string"},
                     "add_special":{"type":"boolean"},"add_special_tokens":{"type":"boolean"},
                     "parse_special":{"type":"boolean"},"with_pieces":{"type":"boolean"},)" +
                                   MessagesSchema(),
                     .required = R"({"anyOf":[{"required":["content"]},{"required":["prompt"]},
                     {"required":["messages"]}]})"};
  table->Add(row);
  row.handler = Detokenize;
  row.description = {
      .summary = "Token ids to text.",
      .properties = R"("tokens":{"type":"array","items":{"type":"integer","minimum":0}})",
      .required = R"(["tokens"])"};
  table->Add(At("/detokenize", row));
  row.handler = ApplyTemplate;
  row.description = {.summary = "Messages to the text of the prompt.",
                     .properties = MessagesSchema(),
                     .required = R"(["messages"])"};
  table->Add(At("/apply-template", row));
}

}  // namespace kvasir
