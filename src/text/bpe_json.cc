// Makes a Bpe of the "model" of a tokenizer.json.
#include <nlohmann/json.hpp>

#include "base/result.h"
#include "text/bpe.h"
#include "text/tokenizer_json.h"

namespace kvasir {
namespace {

constexpr TokenId kMaxId = (1 << 22) - 1;  // sixteen times the largest vocabulary known

}  // namespace

Result<Bpe> Bpe::Parse(const nlohmann::json& model) {
  if (!model.is_object()) return Fail(Code::kCorruption, "tokenizer.json: model is not an object");
  // Files without a type are old: BPE has merges, Unigram a list for a vocabulary.
  const bool has_merges = model.contains("merges");
  KV_ASSIGN(const std::string type, StringField(model, "type", has_merges ? "BPE" : "Unigram"));
  if (type != "BPE") {
    return Fail(Code::kUnsupported,
                "tokenizer.json: model type {} is not supported; use a tokenizer.json of type BPE",
                type);
  }
  Bpe bpe;
  KV_TRY(bpe.ParseOptions(model));
  const auto vocab = model.find("vocab"), merges = model.find("merges");
  if (vocab == model.end() || !vocab->is_object()) {
    return Fail(Code::kCorruption, "tokenizer.json: model.vocab is missing or not an object");
  }
  if (merges == model.end() || !merges->is_array()) {
    return Fail(Code::kCorruption, "tokenizer.json: model.merges is missing or not an array");
  }
  KV_TRY(bpe.ParseVocab(*vocab));
  KV_TRY(bpe.ParseMerges(*merges));
  KV_ASSIGN(const std::string unk, StringField(model, "unk_token", ""));
  bpe.has_unk_ = model.contains("unk_token") && model["unk_token"].is_string();
  bpe.unk_ = bpe.IdOf(unk).value_or(-1);
  bpe.CollectSeams();
  return bpe;
}

Status Bpe::ParseOptions(const nlohmann::json& model) {
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    KV_ASSIGN(const std::string affix, StringField(model, name, ""));
    if (!affix.empty()) {
      return Fail(Code::kUnsupported, "tokenizer.json: model.{} \"{}\" is not supported", name,
                  affix);
    }
  }
  const auto dropout = model.find("dropout");
  if (dropout != model.end() && !dropout->is_null() && *dropout != 0) {
    return Fail(Code::kUnsupported,
                "tokenizer.json: model.dropout is for training; set it to null");
  }
  KV_ASSIGN(fuse_unk_, BoolField(model, "fuse_unk", false));
  KV_ASSIGN(byte_fallback_, BoolField(model, "byte_fallback", false));
  KV_ASSIGN(ignore_merges_, BoolField(model, "ignore_merges", false));
  return {};
}

Status Bpe::ParseVocab(const nlohmann::json& vocab) {
  size_t arena_bytes = 0;
  for (const auto& entry : vocab.items()) arena_bytes += entry.key().size();
  ReserveTokens(vocab.size(), arena_bytes);
  for (const auto& entry : vocab.items()) {
    const std::string& text = entry.key();
    const nlohmann::json& value = entry.value();
    if (!value.is_number_integer() || value < 0 || value > kMaxId) {
      return Fail(Code::kCorruption, "tokenizer.json: id of token \"{}\" is not in 0..{}", text,
                  kMaxId);
    }
    AddToken(text, value.get<TokenId>());
  }
  IndexTokens();
  return {};
}

// Splits "a b". Some files have tokens with spaces: then the one split whose parts are tokens
// counts.
std::optional<std::pair<std::string_view, std::string_view>> Bpe::SplitMerge(
    std::string_view merge) const {
  std::pair<std::string_view, std::string_view> found;
  size_t num_found = 0, num_spaces = 0;
  for (size_t space = merge.find(' '); space != std::string_view::npos;
       space = merge.find(' ', space + 1)) {
    const std::pair parts{merge.substr(0, space), merge.substr(space + 1)};
    if (num_spaces++ == 0) found = parts;
    const std::string joined = std::string(parts.first) + std::string(parts.second);
    if (!ids_.contains(parts.first) || !ids_.contains(parts.second) || !ids_.contains(joined)) {
      continue;
    }
    if (num_found++ == 0) found = parts;
  }
  if (num_spaces == 0) return std::nullopt;
  return found;
}

Status Bpe::ParseMerges(const nlohmann::json& merges) {
  ReserveMerges(merges.size());
  uint32_t rank = 0;
  for (const auto& merge : merges) {
    std::pair<std::string_view, std::string_view> parts;
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      if (text.starts_with("#version")) continue;  // a line of merges.txt; it has no rank
      const auto split = SplitMerge(text);
      if (!split) {
        return Fail(Code::kCorruption, "tokenizer.json: merge {} (\"{}\") is not two tokens", rank,
                    text);
      }
      parts = *split;
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      parts = {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
    } else {
      return Fail(Code::kCorruption, "tokenizer.json: merge {} is neither \"a b\" nor [a, b]",
                  rank);
    }
    const auto left = IdOf(parts.first), right = IdOf(parts.second);
    const auto joined = IdOf(std::string(parts.first) + std::string(parts.second));
    if (!left || !right || !joined) {
      return Fail(Code::kCorruption,
                  "tokenizer.json: merge {} (\"{}\" and \"{}\") is not in the vocabulary", rank,
                  parts.first, parts.second);
    }
    AddMerge(PairOf(*left, *right), rank++, *joined);
  }
  return {};
}

}  // namespace kvasir
