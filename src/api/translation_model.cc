#include "api/translation_model.h"

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "base/check.h"
#include "base/mapped_file.h"
#include "base/result.h"

namespace kvasir {
namespace {

Result<TokenId> FindLanguage(const Languages& languages, const char* field,
                             const std::optional<std::string>& code) {
  if (!code) return FailField(Code::kInvalidArgument, field, "is missing");
  const Result<Language> found = languages.Find(*code);
  if (found) return found->id;
  return FailField(Code::kInvalidArgument, field, "{}{}",
                   *code == "auto" ? "languages are not detected; " : "", found.error().message);
}

Status CheckPair(const LanguagePair& pair, const std::optional<std::string>& source,
                 const std::optional<std::string>& target) {
  for (const auto& [field, given, own] :
       {std::tuple("source", &source, &pair.source), {"target", &target, &pair.target}}) {
    if (!*given || **given == *own) continue;
    return FailField(Code::kInvalidArgument, field,
                     "'{}', but the model translates {}; leave it out", (*given)->substr(0, 40),
                     own->empty() ? "one pair of languages, which its files do not name"
                                  : "from " + pair.source + " to " + pair.target);
  }
  return {};
}

}  // namespace

Result<TranslationModel> TranslationModelOf(const Engine& engine) {
  TranslationModel model;
  model.decoder_start = *engine.card().decoder_start;
  model.parallel = engine.options().parallel;
  const Tokenizer* tokenizer = engine.tokenizer();
  if (tokenizer == nullptr) return model;
  model.pair = engine.card().language_pair;
  if (model.pair || !tokenizer->eos()) return model;
  model.languages = Languages::Of(*tokenizer);
  namespace fs = std::filesystem;
  const fs::path config = fs::path(engine.card().path) / "tokenizer_config.json";
  std::error_code error;
  if (!fs::exists(config, error)) return model;
  constexpr uint64_t kMaxBytes = uint64_t{64} << 20;
  KV_ASSIGN(const std::string text, ReadTextFile(config, kMaxBytes));
  KV_ASSIGN(model.place, LanguagePlaceOf(text));
  return model;
}

Result<Direction> DirectionOf(const TranslationModel& model, const Tokenizer& tokenizer,
                              const std::optional<std::string>& source,
                              const std::optional<std::string>& target) {
  if (model.pair) {
    KV_TRY(CheckPair(*model.pair, source, target));
    return Direction{model.pair->frame, {}};
  }
  KV_ASSIGN(const TokenId from, FindLanguage(model.languages, "source", source));
  KV_ASSIGN(const TokenId to, FindLanguage(model.languages, "target", target));
  return Direction{FrameOf(tokenizer, from, model.place), {to}};
}

Status SetTarget(TokenId decoder_start, const std::vector<TokenId>& target,
                 GenerateRequest* request) {
  request->prompt = {decoder_start};
  request->prompt.insert(request->prompt.end(), target.begin(), target.end());
  const auto size = static_cast<uint32_t>(target.size());
  KV_CHECK(request->max_tokens >= size);
  if (request->max_tokens != UINT32_MAX) request->max_tokens -= size;
  request->min_tokens -= std::min(request->min_tokens, size);
  if (!request->beams || request->max_tokens > 0) return {};
  return FailField(Code::kInvalidArgument, "max_tokens",
                   "is {}, which is the language; a beam search needs one more", size);
}

}  // namespace kvasir
