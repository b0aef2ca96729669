#include "text/decoder.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/result.h"
#include "base/utf8.h"
#include "text/decode_bytes.h"
#include "text/pattern.h"
#include "text/tokenizer_json.h"

namespace kvasir {
namespace {

// Without a decoder: a space between two tokens.
class SpacesStage : public DecodeStage {
 public:
  using DecodeStage::DecodeStage;
  void Append(std::string_view text) override {
    Begin();
    next_->Append(text);
  }
  void EndToken() override {
    Begin();
    inside_ = false;
  }

 private:
  void Begin() {
    if (!inside_ && !first_) next_->Append(" ");
    inside_ = true;
    first_ = false;
  }
  bool first_ = true, inside_ = false;
};

// All tokens as one.
class FuseStage : public DecodeStage {
 public:
  using DecodeStage::DecodeStage;
  void Append(std::string_view text) override { next_->Append(text); }
  void EndToken() override {}
  void Finish() override {
    next_->EndToken();
    next_->Finish();
  }
};

// Takes up to `start` and `stop` times a character off the ends of a token.
class StripStage : public DecodeStage {
 public:
  StripStage(std::string content, size_t start, size_t stop, DecodeStage* next)
      : DecodeStage(next), content_(std::move(content)), start_(start), stop_(stop), left_(start) {}
  void Append(std::string_view text) override {
    while (left_ > 0 && text.starts_with(content_)) {
      text.remove_prefix(content_.size());
      --left_;
    }
    if (text.empty()) return;
    left_ = 0;
    if (stop_ == 0) return next_->Append(text);
    tail_ += text;
    size_t end = tail_.size();
    for (size_t i = 0; i < stop_ && std::string_view(tail_).substr(0, end).ends_with(content_);
         ++i) {
      end -= content_.size();
    }
    next_->Append(std::string_view(tail_).substr(0, end));
    tail_.erase(0, end);
  }
  void EndToken() override {
    tail_.clear();
    left_ = start_;
    next_->EndToken();
  }

 private:
  const std::string content_;
  const size_t start_, stop_;
  size_t left_;
  std::string tail_;  // what Strip takes if the token ends here
};

// Every occurrence of a string inside a token.
class ReplaceStage : public DecodeStage {
 public:
  ReplaceStage(std::string_view pattern, std::string_view content, DecodeStage* next)
      : DecodeStage(next), pattern_(pattern), content_(content) {}
  void Append(std::string_view text) override {
    if (!held_.empty()) {
      held_ += text;
      const std::string all = std::move(held_);
      held_.clear();
      return Pass(all);
    }
    Pass(text);
  }
  void EndToken() override {
    if (!held_.empty()) next_->Append(held_);
    held_.clear();
    next_->EndToken();
  }

 private:
  void Pass(std::string_view text) {
    for (size_t at = text.find(pattern_); at != text.npos; at = text.find(pattern_)) {
      if (at > 0) next_->Append(text.substr(0, at));
      next_->Append(content_);
      text.remove_prefix(at + pattern_.size());
    }
    size_t keep = std::min(pattern_.size() - 1, text.size());
    while (keep > 0 && !pattern_.starts_with(text.substr(text.size() - keep))) --keep;
    held_ = text.substr(text.size() - keep);
    if (keep < text.size()) next_->Append(text.substr(0, text.size() - keep));
  }

  const std::string_view pattern_, content_;
  std::string held_;  // an end that may begin an occurrence
};

class RegexStage : public WholeTokenStage {
 public:
  RegexStage(const Pattern& pattern, std::string_view content, DecodeStage* next)
      : WholeTokenStage(next), pattern_(pattern), content_(content) {}

 protected:
  void Token(std::string_view token) override {
    std::string out;
    const Status status = pattern_.Split(token, [&](size_t begin, size_t end, bool is_match) {
      out += is_match ? content_ : token.substr(begin, end - begin);
    });
    next_->Append(status ? std::string_view(out) : token);  // too much work: the token as it is
    next_->EndToken();
  }

 private:
  const Pattern& pattern_;
  const std::string_view content_;
};

// The replacement character to a space; in the first token to nothing, where a prefix was added.
class MetaspaceStage : public DecodeStage {
 public:
  MetaspaceStage(std::string_view replacement, bool drop_first, DecodeStage* next)
      : DecodeStage(next), replacement_(replacement), drop_(drop_first) {}
  void Append(std::string_view text) override {
    for (size_t at = text.find(replacement_); at != text.npos; at = text.find(replacement_)) {
      if (at > 0) next_->Append(text.substr(0, at));
      if (!drop_) next_->Append(" ");
      text.remove_prefix(at + replacement_.size());
    }
    if (!text.empty()) next_->Append(text);
  }
  void EndToken() override {
    drop_ = false;
    next_->EndToken();
  }

 private:
  const std::string_view replacement_;
  bool drop_;
};

class SpacesSpec : public Decoder::Spec {
 public:
  std::unique_ptr<DecodeStage> Make(DecodeStage* next) const override {
    return std::make_unique<SpacesStage>(next);
  }
  bool Apply(bool* /*fused*/, Decoder::Bytes* /*bytes*/) const override { return false; }
};

class FuseSpec : public Decoder::Spec {
 public:
  std::unique_ptr<DecodeStage> Make(DecodeStage* next) const override {
    return std::make_unique<FuseStage>(next);
  }
  bool Apply(bool* fused, Decoder::Bytes* /*bytes*/) const override { return *fused = true; }
};

class ByteLevelSpec : public Decoder::Spec {
 public:
  std::unique_ptr<DecodeStage> Make(DecodeStage* next) const override {
    return std::make_unique<ByteLevelStage>(next);
  }
  bool Apply(bool* fused, Decoder::Bytes* bytes) const override {
    bytes->token = BytesOfByteLevel(bytes->token);
    return *fused = true;
  }
};

class ByteFallbackSpec : public Decoder::Spec {
 public:
  std::unique_ptr<DecodeStage> Make(DecodeStage* next) const override {
    return std::make_unique<ByteFallbackStage>(next);
  }
  bool Apply(bool* /*fused*/, Decoder::Bytes* bytes) const override {
    if (const auto byte = ByteOfFallback(bytes->token)) bytes->token = static_cast<char>(*byte);
    return true;
  }
};

class StripSpec : public Decoder::Spec {
 public:
  StripSpec(std::string content, size_t start, size_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  std::unique_ptr<DecodeStage> Make(DecodeStage* next) const override {
    return std::make_unique<StripStage>(content_, start_, stop_, next);
  }
  bool Apply(bool* fused, Decoder::Bytes* bytes) const override {
    if (!*fused || content_ != " " || stop_ != 0) return false;
    bytes->dropped_spaces += start_;
    return true;
  }

 private:
  std::string content_;
  size_t start_, stop_;
};

class ReplaceSpec : public Decoder::Spec {
 public:
  ReplaceSpec(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  std::unique_ptr<DecodeStage> Make(DecodeStage* next) const override {
    if (pattern_.is_regex()) return std::make_unique<RegexStage>(pattern_, content_, next);
    return std::make_unique<ReplaceStage>(pattern_.text(), content_, next);
  }
  bool Apply(bool* fused, Decoder::Bytes* bytes) const override {
    if (pattern_.is_regex() || *fused) return false;
    std::string replaced;
    std::string_view rest = bytes->token;
    for (size_t at; (at = rest.find(pattern_.text())) != rest.npos;) {
      replaced.append(rest.substr(0, at)).append(content_);
      rest.remove_prefix(at + pattern_.text().size());
    }
    bytes->token = replaced.append(rest);
    return true;
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class MetaspaceSpec : public Decoder::Spec {
 public:
  MetaspaceSpec(std::string replacement, bool drop_first)
      : replacement_(std::move(replacement)), drop_first_(drop_first) {}
  std::unique_ptr<DecodeStage> Make(DecodeStage* next) const override {
    return std::make_unique<MetaspaceStage>(replacement_, drop_first_, next);
  }
  bool Apply(bool* /*fused*/, Decoder::Bytes* /*bytes*/) const override { return false; }

 private:
  std::string replacement_;
  bool drop_first_;
};

using SpecPtr = std::unique_ptr<Decoder::Spec>;

Result<SpecPtr> ParseStrip(const nlohmann::json& value) {
  KV_ASSIGN(std::string content, StringField(value, "content", " "));
  size_t counts[2] = {0, 0};
  const char* const names[2] = {"start", "stop"};
  for (int i = 0; i < 2; ++i) {
    const auto it = value.find(names[i]);
    if (it == value.end() || !it->is_number_unsigned() || *it > 1024) {
      return Fail(Code::kCorruption, "tokenizer.json: decoder Strip.{} is not in 0..1024",
                  names[i]);
    }
    counts[i] = it->get<size_t>();
  }
  if (!IsOneChar(content)) {
    return Fail(Code::kCorruption, "tokenizer.json: decoder Strip.content is not one character");
  }
  return std::make_unique<StripSpec>(std::move(content), counts[0], counts[1]);
}

Result<SpecPtr> ParseMetaspace(const nlohmann::json& value) {
  KV_ASSIGN(MetaspaceFields fields, ReadMetaspace(value));
  return std::make_unique<MetaspaceSpec>(std::move(fields.replacement), fields.scheme != "never");
}

// `fused` tells whether all tokens are one by now; such a one cannot be collected in a stream.
Result<SpecPtr> ParseStage(const nlohmann::json& value, bool* fused) {
  KV_ASSIGN(const std::string type, StringField(value, "type", ""));
  const auto late = [&] {
    return Fail(Code::kUnsupported,
                "tokenizer.json: decoder \"{}\" is not supported after one that joins all tokens",
                type);
  };
  if (type == "ByteLevel" || type == "ByteFallback") {
    if (*fused) return late();
    if (type == "ByteFallback") return std::make_unique<ByteFallbackSpec>();
    *fused = true;
    return std::make_unique<ByteLevelSpec>();
  }
  if (type == "Fuse") {
    *fused = true;
    return std::make_unique<FuseSpec>();
  }
  if (type == "Strip") return ParseStrip(value);
  if (type == "Metaspace") return ParseMetaspace(value);
  if (type == "Replace") {
    KV_ASSIGN(Pattern pattern, Pattern::Parse(value));
    KV_ASSIGN(std::string content, StringField(value, "content", ""));
    if (*fused && pattern.is_regex()) return late();
    return std::make_unique<ReplaceSpec>(std::move(pattern), std::move(content));
  }
  return Fail(Code::kUnsupported, "tokenizer.json: decoder \"{}\" is not supported", type);
}

}  // namespace

Result<Decoder> Decoder::Parse(const nlohmann::json& value) {
  Decoder decoder;
  bool fused = false;
  if (value.is_null()) {
    decoder.specs_.push_back(std::make_unique<SpacesSpec>());
  } else {
    const auto take = [&](const nlohmann::json& stage) -> Status {
      KV_ASSIGN(decoder.specs_.emplace_back(), ParseStage(stage, &fused));
      return {};
    };
    KV_TRY(ForEachStep(value, "decoder", "decoders", take));
  }
  decoder.joins_bytes_ = decoder.specs_.size() == 1 && dynamic_cast<const ByteLevelSpec*>(
                                                           decoder.specs_.front().get()) != nullptr;
  return decoder;
}

std::optional<Decoder::Bytes> Decoder::BytesOf(std::string_view token) const {
  Bytes bytes{.token = std::string(token)};
  bool fused = false;
  for (const auto& spec : specs_) {
    if (!spec->Apply(&fused, &bytes)) return std::nullopt;
  }
  return bytes;
}

DecoderRun Decoder::Start() const {
  DecoderRun run;
  DecodeStage* next = run.sink_.get();
  for (auto spec = specs_.rbegin(); spec != specs_.rend(); ++spec) {
    run.stages_.push_back((*spec)->Make(next));
    next = run.stages_.back().get();
  }
  if (run.stages_.empty()) {  // an empty Sequence
    run.stages_.push_back(std::make_unique<FuseStage>(next));
  }
  return run;
}

void DecoderRun::Append(std::string_view token, std::string* out) {
  sink_->out = out;
  if (!token.empty()) stages_.back()->Append(token);
  stages_.back()->EndToken();
}

void DecoderRun::Finish(std::string* out) {
  sink_->out = out;
  stages_.back()->Finish();
}

}  // namespace kvasir
