#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/base64.h"
#include "base/result.h"
#include "base/utf8.h"
#include "text/charsmap.h"
#include "text/pattern.h"
#include "text/tokenizer_json.h"
#include "text/unicode_form.h"

namespace kvasir {
namespace {

constexpr size_t kMaxGrowth = 64;  // of a text, and of a byte that is replaced

using Step = std::unique_ptr<Normalizer>;

// Builds a MarkedText from pieces of another one.
class Rewriter {
 public:
  explicit Rewriter(MarkedText* target) : target_(target), source_(std::move(*target)) {
    *target_ = MarkedText{"", "", source_.start};
    target_->text.reserve(source_.text.size());
  }
  const std::string& text() const { return source_.text; }

  void Keep(size_t begin, size_t end) {
    target_->text.append(source_.text, begin, end - begin);
    if (!source_.literal.empty()) target_->literal.append(source_.literal, begin, end - begin);
  }
  // Writes through `append` what stands for [begin, end) of the source.
  template <typename Append>
  void Put(size_t begin, size_t end, const Append& append) {
    const size_t size = target_->text.size();
    append(&target_->text);
    if (source_.literal.empty()) return;
    const std::string_view flags = std::string_view(source_.literal).substr(begin, end - begin);
    const bool literal = flags.find('\1') != flags.npos;
    target_->literal.append(target_->text.size() - size, literal ? '\1' : '\0');
  }
  // Returns the end of the bytes from `begin` that one side wrote: users' and the template's text
  // never merge into one character.
  size_t EndOfSide(size_t begin) const {
    if (source_.literal.empty()) return source_.text.size();
    const char other = source_.literal[begin] != 0 ? '\0' : '\1';
    return std::min(source_.literal.find(other, begin), source_.text.size());
  }

 private:
  MarkedText* target_;
  MarkedText source_;
};

bool IsAscii(char c) { return static_cast<unsigned char>(c) < 0x80; }

class FormStep : public Normalizer {
 public:
  explicit FormStep(UnicodeForm form) : form_(form) {}
  Status Apply(MarkedText* text) const override {
    if (std::all_of(text->text.begin(), text->text.end(), IsAscii)) return {};
    Rewriter out(text);
    const std::string& in = out.text();
    size_t side = 0;
    for (size_t begin = 0; begin < in.size();) {
      if (begin >= side) side = out.EndOfSide(begin);
      // A normal form changes an ASCII character only together with what follows it, so of a run of
      // ASCII only the last character can change.
      size_t end = begin;
      while (end < side && IsAscii(in[end])) ++end;
      if (end < side && end > begin) --end;
      out.Keep(begin, end);
      begin = end;
      if (end < side) ++end;
      while (end < side && !IsAscii(in[end])) ++end;
      if (end == begin) continue;
      out.Put(begin, end, [&](std::string* to) {
        AppendUnicodeForm(form_, std::string_view(in).substr(begin, end - begin), to);
      });
      begin = end;
    }
    return {};
  }

 private:
  UnicodeForm form_;
};

class LowercaseStep : public Normalizer {
 public:
  Status Apply(MarkedText* text) const override {
    Rewriter out(text);
    for (size_t pos = 0; pos < out.text().size();) {
      const size_t begin = pos;
      const char32_t c = NextChar(out.text(), &pos);
      out.Put(begin, pos, [&](std::string* to) {
        if (c == 0x130) {  // the one letter whose lower case is two characters
          *to += "i\xCC\x87";
        } else {
          const auto lower = utf8proc_tolower(static_cast<utf8proc_int32_t>(c));
          AppendUtf8(static_cast<char32_t>(lower), to);
        }
      });
    }
    return {};
  }
};

class PrependStep : public Normalizer {
 public:
  explicit PrependStep(std::string prefix) : prefix_(std::move(prefix)) {}
  Status Apply(MarkedText* text) const override {
    if (text->text.empty() || text->start == TextStart::kContinues) return {};
    text->text.insert(0, prefix_);
    if (!text->literal.empty()) text->literal.insert(0, prefix_.size(), '\0');
    return {};
  }

 private:
  std::string prefix_;
};

class ReplaceStep : public Normalizer {
 public:
  ReplaceStep(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  Status Apply(MarkedText* text) const override {
    Rewriter out(text);
    return pattern_.Split(out.text(), [&](size_t begin, size_t end, bool is_match) {
      if (!is_match) return out.Keep(begin, end);
      out.Put(begin, end, [&](std::string* to) { *to += content_; });
    });
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class StripStep : public Normalizer {
 public:
  StripStep(bool left, bool right) : left_(left), right_(right) {}
  Status Apply(MarkedText* text) const override {
    const std::string& in = text->text;
    size_t first = in.size(), last = 0;  // the text without outer white space
    for (size_t pos = 0; pos < in.size();) {
      const size_t start = pos;
      if (IsWhitespace(NextChar(in, &pos))) continue;
      first = std::min(first, start);
      last = pos;
    }
    const size_t begin = left_ ? first : 0;
    const size_t end = std::max(begin, right_ ? last : in.size());
    Rewriter out(text);
    out.Keep(begin, end);
    return {};
  }

 private:
  bool left_, right_;
};

class StripAccentsStep : public Normalizer {
 public:
  Status Apply(MarkedText* text) const override {
    Rewriter out(text);
    for (size_t pos = 0; pos < out.text().size();) {
      const size_t begin = pos;
      if (!IsCombiningMark(NextChar(out.text(), &pos))) out.Keep(begin, pos);
    }
    return {};
  }
};

// The table of SentencePiece. `tokenizers` does not apply it as SentencePiece does: a text of its
// (Unicode 14) grapheme of less than six bytes becomes what the table's *shortest* text that it
// begins with becomes, whatever follows in the grapheme, or else each character does.
class CharsmapStep : public Normalizer {
 public:
  enum class Rule { kSentencePiece, kTokenizers };
  CharsmapStep(Charsmap map, Rule rule) : map_(std::move(map)), rule_(rule) {}
  Status Apply(MarkedText* text) const override {
    Rewriter out(text);
    const std::string_view in = out.text();
    size_t side = 0;
    for (size_t begin = 0; begin < in.size();) {
      if (begin >= side) side = out.EndOfSide(begin);
      const std::string_view rest = in.substr(begin, side - begin);
      if (rule_ == Rule::kSentencePiece) {
        begin += Put(begin, rest, map_.Longest(rest), &out);
        continue;
      }
      const size_t end = begin + GraphemeBytes(rest);
      const auto whole =
          end - begin < 6 ? map_.Shortest(in.substr(begin, end - begin)) : std::nullopt;
      if (whole) {
        out.Put(begin, end, [&](std::string* to) { *to += whole->becomes; });
        begin = end;
      }
      while (begin < end) {
        size_t next = begin;
        NextChar(in, &next);
        const std::string_view one = in.substr(begin, next - begin);
        const auto match = map_.Shortest(one);
        if (match) {
          out.Put(begin, next, [&](std::string* to) { *to += match->becomes; });
        } else {
          out.Keep(begin, next);
        }
        begin = next;
      }
    }
    return {};
  }

 private:
  // Writes what is at `begin`: the match, or one character. Returns its bytes.
  static size_t Put(size_t begin, std::string_view rest,
                    const std::optional<Charsmap::Match>& match, Rewriter* out) {
    size_t size = 0;
    if (!match) {
      NextChar(rest, &size);
      out->Keep(begin, begin + size);
      return size;
    }
    out->Put(begin, begin + match->size, [&](std::string* to) { *to += match->becomes; });
    return match->size;
  }
  static size_t GraphemeBytes(std::string_view text) {
    size_t end = 0;
    utf8proc_int32_t state = 0;
    auto last = static_cast<utf8proc_int32_t>(NextChar(text, &end));
    while (end < text.size()) {
      size_t next = end;
      const auto c = static_cast<utf8proc_int32_t>(NextChar(text, &next));
      if (utf8proc_grapheme_break_stateful(last, c, &state)) break;
      last = c;
      end = next;
    }
    return end;
  }

  Charsmap map_;
  Rule rule_;
};

// All Sequences, however nested, become one list: then this is the only place where text can grow
// step by step, and a hostile file cannot make it explode.
class SequenceStep : public Normalizer {
 public:
  explicit SequenceStep(std::vector<Step> steps) : steps_(std::move(steps)) {}
  Status Apply(MarkedText* text) const override {
    const size_t max_bytes = kMaxGrowth * text->text.size() + (64 << 10);
    for (const auto& step : steps_) {
      KV_TRY(step->Apply(text));
      if (text->text.size() > max_bytes) {
        return Fail(Code::kInvalidArgument,
                    "tokenizer: the normalizer makes the text more than {} times longer",
                    kMaxGrowth);
      }
    }
    return {};
  }

 private:
  std::vector<Step> steps_;
};

Status CheckLength(const char* field, const std::string& text) {
  if (text.size() <= kMaxGrowth) return {};
  return Fail(Code::kUnsupported, "tokenizer.json: {} of {} bytes; at most {} are supported", field,
              text.size(), kMaxGrowth);
}

// Parses a charsmap: as text, which a tokenizer.json has (base64), or as bytes, which only PartsOf
// writes, of a SentencePiece model.
Result<Step> ParseCharsmap(const nlohmann::json& value) {
  constexpr const char* kName = "precompiled_charsmap";
  const auto found = value.find(kName);
  using Rule = CharsmapStep::Rule;
  if (found != value.end() && found->is_binary()) {
    const auto& bytes = found->get_binary();
    const std::string_view view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    KV_ASSIGN(Charsmap map, Charsmap::Parse(view, "SentencePiece model"));
    return std::make_unique<CharsmapStep>(std::move(map), Rule::kSentencePiece);
  }
  KV_ASSIGN(const std::string text, StringField(value, kName, ""));
  const std::optional<std::string> bytes = DecodeBase64(text);
  if (!bytes) return Fail(Code::kCorruption, "tokenizer.json: {} is not base64", kName);
  KV_ASSIGN(Charsmap map, Charsmap::Parse(*bytes, "tokenizer.json"));
  return std::make_unique<CharsmapStep>(std::move(map), Rule::kTokenizers);
}

Result<Step> ParseStep(const nlohmann::json& value) {
  KV_ASSIGN(const std::string type, StringField(value, "type", ""));
  if (type == "NFC") return std::make_unique<FormStep>(UnicodeForm::kNfc);
  if (type == "NFD") return std::make_unique<FormStep>(UnicodeForm::kNfd);
  if (type == "NFKC") return std::make_unique<FormStep>(UnicodeForm::kNfkc);
  if (type == "NFKD") return std::make_unique<FormStep>(UnicodeForm::kNfkd);
  if (type == "Lowercase") return std::make_unique<LowercaseStep>();
  if (type == "StripAccents") return std::make_unique<StripAccentsStep>();
  if (type == "Prepend") {
    KV_ASSIGN(std::string prefix, StringField(value, "prepend", ""));
    KV_TRY(CheckLength("Prepend.prepend", prefix));
    return std::make_unique<PrependStep>(std::move(prefix));
  }
  if (type == "Replace") {
    KV_ASSIGN(Pattern pattern, Pattern::Parse(value));
    KV_ASSIGN(std::string content, StringField(value, "content", ""));
    KV_TRY(CheckLength("Replace.content", content));
    return std::make_unique<ReplaceStep>(std::move(pattern), std::move(content));
  }
  if (type == "Strip") {
    KV_ASSIGN(const bool left, BoolField(value, "strip_left", true));
    KV_ASSIGN(const bool right, BoolField(value, "strip_right", true));
    return std::make_unique<StripStep>(left, right);
  }
  if (type == "Precompiled") return ParseCharsmap(value);
  return Fail(Code::kUnsupported, "tokenizer.json: normalizer \"{}\" is not supported", type);
}

}  // namespace

Result<std::unique_ptr<Normalizer>> Normalizer::Parse(const nlohmann::json& value) {
  std::vector<Step> steps;
  const auto take = [&](const nlohmann::json& one) -> Status {
    KV_ASSIGN(steps.emplace_back(), ParseStep(one));
    return {};
  };
  if (!value.is_null()) KV_TRY(ForEachStep(value, "normalizer", "normalizers", take));
  return std::make_unique<SequenceStep>(std::move(steps));
}

}  // namespace kvasir
