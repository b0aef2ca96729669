// Regular expressions of tokenizer files: Oniguruma's Ruby syntax, run by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir {

struct TextMatch {
  size_t begin, end;
};

// A compiled pattern that matches as Oniguruma does in `tokenizers`: where the two dialects differ
// (\s, \w, \h, scripts, line anchors) the pattern is translated; syntax that cannot be translated
// is refused. Work and memory are limited, so a hostile pattern fails and never hangs: all searches
// of a text together may scan it 64 times. Immutable; thread-safe.
class Regex {
 public:
  // kUnsupported for syntax that cannot be translated, kCorruption for a wrong pattern.
  static Result<Regex> Compile(std::string_view pattern);
  // Returns \w+|[^\w\s]+ with \w and \s of Rust's regex: the pre-tokenizer Whitespace.
  static const Regex& RustWords();

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Finds the matches in text from left to right: no overlaps, and no empty match at the end of the
  // match before.
  class Finder {
   public:
    // REQUIRES: regex and text (well-formed UTF-8) outlive the Finder.
    Finder(const Regex& regex, std::string_view text)
        : regex_(regex), text_(text), work_left_(kLeastWork + kPasses * text.size()) {}
    // nullopt at the end. kInvalidArgument when a search needs more than the limit.
    Result<std::optional<TextMatch>> Next();

   private:
    // In scanned bytes, forwards and backwards. Patterns of known models scan a text once or twice.
    static constexpr uint64_t kPasses = 64, kLeastWork = 4096;

    const Regex& regex_;
    std::string_view text_;
    uint64_t work_left_;
    size_t pos_ = 0;
    std::optional<size_t> last_end_;
  };

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  static Result<Regex> CompilePcre(const std::string& pcre, std::string_view shown);
  std::unique_ptr<Code> code_;
};

// Returns the PCRE2 pattern with Oniguruma's meaning of `pattern`. kUnsupported names the syntax.
Result<std::string> TranslateOniguruma(std::string_view pattern);

}  // namespace kvasir
