#include "text/post_processor.h"

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "text/tokenizer_json.h"

namespace kvasir {
namespace {

constexpr TokenId kMaxSpecialId = (1 << 22) - 1;
constexpr size_t kMaxAdded = 64;

tl::unexpected<Error> Broken(const char* what) {
  return Fail(Code::kCorruption, "tokenizer.json: post-processor: {}", what);
}

Status AppendId(const nlohmann::json& id, std::vector<TokenId>* ids) {
  if (!id.is_number_unsigned() || id > kMaxSpecialId) return Broken("an id is out of range");
  ids->push_back(id.get<TokenId>());
  return {};
}

// Appends the ids of {"SpecialToken": {"id": name}}.
Status AppendSpecial(const nlohmann::json& token, const nlohmann::json& value,
                     std::vector<TokenId>* ids) {
  const auto specials = value.find("special_tokens");
  if (!token.is_object() || specials == value.end() || !specials->is_object()) {
    return Broken("special_tokens is missing");
  }
  KV_ASSIGN(const std::string name, StringField(token, "id", ""));
  const auto special = specials->find(name);
  if (special == specials->end() || !special->is_object() || !special->contains("ids") ||
      !(*special)["ids"].is_array()) {
    return Broken("special_tokens lacks a token of the template");
  }
  for (const auto& id : (*special)["ids"]) KV_TRY(AppendId(id, ids));
  return {};
}

Result<PostProcessor> ParseTemplate(const nlohmann::json& value) {
  const auto single = value.find("single");
  if (single == value.end() || !single->is_array()) return Broken("single is not an array");
  PostProcessor processor;
  int num_sequences = 0;
  for (const auto& piece : *single) {
    if (!piece.is_object()) return Broken("a piece of single is not an object");
    if (piece.contains("Sequence")) {
      ++num_sequences;
    } else if (piece.contains("SpecialToken")) {
      KV_TRY(AppendSpecial(piece["SpecialToken"], value,
                           num_sequences == 0 ? &processor.prefix : &processor.suffix));
    } else {
      return Broken("a piece of single is neither Sequence nor SpecialToken");
    }
  }
  if (num_sequences != 1) return Broken("single does not hold its sequence exactly once");
  return processor;
}

// Parses those of Bert and Roberta: {"cls": [text, id], "sep": [text, id]}.
Result<PostProcessor> ParseClsSep(const nlohmann::json& value) {
  PostProcessor processor;
  for (const char* name : {"cls", "sep"}) {
    const auto pair = value.find(name);
    if (pair == value.end() || !pair->is_array() || pair->size() != 2) {
      return Broken("cls or sep is not [text, id]");
    }
    KV_TRY(AppendId((*pair)[1], name[0] == 'c' ? &processor.prefix : &processor.suffix));
  }
  return processor;
}

// Puts what one processor adds around what those before it added.
Status AddProcessor(const nlohmann::json& value, PostProcessor* all) {
  KV_ASSIGN(const std::string type, StringField(value, "type", ""));
  if (type == "ByteLevel") return {};  // moves offsets, which we do not keep
  PostProcessor one;
  if (type == "TemplateProcessing") {
    KV_ASSIGN(one, ParseTemplate(value));
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    KV_ASSIGN(one, ParseClsSep(value));
  } else {
    return Fail(Code::kUnsupported, "tokenizer.json: post-processor \"{}\" is not supported", type);
  }
  all->prefix.insert(all->prefix.begin(), one.prefix.begin(), one.prefix.end());
  all->suffix.insert(all->suffix.end(), one.suffix.begin(), one.suffix.end());
  if (all->prefix.size() + all->suffix.size() > kMaxAdded)
    return Broken("adds more than 64 tokens");
  return {};
}

}  // namespace

Result<PostProcessor> PostProcessor::Parse(const nlohmann::json& value) {
  PostProcessor processor;
  if (!value.is_null()) {
    KV_TRY(ForEachStep(value, "post-processor:", "processors",
                       [&](const nlohmann::json& one) { return AddProcessor(one, &processor); }));
  }
  return processor;
}

}  // namespace kvasir
