#include "eval/text_files.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/result.h"
#include "base/utf8.h"

namespace kvasir::eval {
namespace {

namespace fs = std::filesystem;

// Bytes read of a text file for each wanted token; few texts have longer tokens on average.
constexpr uint64_t kBytesPerToken = 32;
constexpr uint64_t kMaxFileBytes = uint64_t{64} << 20;  // of files with probes or ids

// Reads at most max_bytes of a file.
Result<std::string> ReadFile(const std::string& flag, const std::string& path, uint64_t max_bytes) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    return Fail(Code::kInvalidArgument, "{}: '{}' is a folder; give a file", flag, path);
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return Fail(Code::kNotFound, "{}: cannot read '{}'; give a file", flag, path);
  std::string bytes;
  char piece[1 << 16];
  while (bytes.size() < max_bytes && file) {
    file.read(piece, static_cast<std::streamsize>(
                         std::min<uint64_t>(sizeof(piece), max_bytes - bytes.size())));
    bytes.append(piece, static_cast<size_t>(file.gcount()));
  }
  if (file.bad()) return Fail(Code::kIoError, "{}: reading '{}' failed", flag, path);
  return bytes;
}

// Checks the text of a file's start; if `cut`, drops an incomplete character at its end.
Status CheckText(const std::string& path, std::string* text, bool cut) {
  if (text->empty()) {
    return Fail(Code::kInvalidArgument, "--text: '{}' is empty; give a file with text", path);
  }
  if (const size_t zero = text->find('\0'); zero != std::string::npos) {
    return Fail(Code::kInvalidArgument,
                "--text: '{}' is binary (a zero byte at offset {}); give a UTF-8 text file", path,
                zero);
  }
  const size_t wrong = FirstInvalidUtf8(*text);
  if (wrong == text->size()) return {};
  if (cut && text->size() - wrong < 4) {
    text->resize(wrong);
    return {};
  }
  return Fail(
      Code::kInvalidArgument,
      "--text: '{}' is not UTF-8 (byte 0x{:02x} at offset {}); convert it, for example with iconv",
      path, static_cast<unsigned char>((*text)[wrong]), wrong);
}

// The words of a text of ids: separated by white space, and inside brackets also by single commas.
class IdWords {
 public:
  explicit IdWords(std::string_view text) : text_(text) {
    SkipSpace();
    is_array_ = Take('[');
  }
  struct Word {
    std::string_view text;  // may not be a number
    size_t offset;
  };
  // nullopt at the end, or when the text is not a list; then wrong() has the problem.
  std::optional<Word> Next() {
    SkipSpace();
    if (is_array_ && num_words_ > 0 && !Take(',')) return End();
    SkipSpace();
    if (is_array_ && num_words_ == 0 && at_ < text_.size() && text_[at_] == ']') return End();
    if (!is_array_ && at_ == text_.size()) return std::nullopt;
    ++num_words_;
    const size_t begin = at_;
    at_ = std::min(text_.find_first_of(is_array_ ? " \t\r\n,]" : " \t\r\n", at_), text_.size());
    return Word{text_.substr(begin, at_ - begin), begin};
  }
  const std::string& wrong() const { return wrong_; }

 private:
  void SkipSpace() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }
  bool Take(char c) {
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::nullopt_t End() {
    if (!Take(']')) {
      wrong_ = fmt::format("no ',' or ']' at offset {}; is the array cut short?", at_);
    } else if (SkipSpace(); at_ < text_.size()) {
      wrong_ = fmt::format("something follows the array at offset {}", at_);
    }
    return std::nullopt;
  }

  std::string_view text_;
  size_t at_ = 0, num_words_ = 0;
  bool is_array_ = false;
  std::string wrong_;
};

}  // namespace

Result<std::string> ReadWholeFile(const std::string& flag, const std::string& path) {
  KV_ASSIGN(std::string bytes, ReadFile(flag, path, kMaxFileBytes + 1));
  if (bytes.size() <= kMaxFileBytes) return bytes;
  return Fail(Code::kInvalidArgument, "{}: '{}' has more than {} bytes; give a shorter file", flag,
              path, kMaxFileBytes);
}

Result<std::string> ReadTextStart(const std::string& path, uint64_t tokens) {
  const uint64_t max_bytes = tokens * kBytesPerToken;
  KV_ASSIGN(std::string text, ReadFile("--text", path, max_bytes));
  KV_TRY(CheckText(path, &text, text.size() == max_bytes));
  return text;
}

Result<std::vector<TokenId>> ReadIds(const std::string& place, std::string_view text,
                                     uint32_t vocab_size) {
  const auto wrong = [&place](const std::string& what) {
    return Fail(Code::kInvalidArgument,
                "--ids: {}: {}; give token ids as a JSON array or separated by white space", place,
                what);
  };
  std::vector<TokenId> ids;
  IdWords words(text);
  while (const auto word = words.Next()) {
    uint64_t id = 0;
    const char* const end = word->text.data() + word->text.size();
    const std::errc error = std::from_chars(word->text.data(), end, id).ec;
    const bool is_number =
        !word->text.empty() && word->text.find_first_not_of("0123456789") == std::string_view::npos;
    if (!is_number) {
      std::string shown(word->text.substr(0, 40));
      std::ranges::replace_if(
          shown, [](char c) { return c < ' ' || c > '~'; }, '?');
      return wrong(fmt::format("'{}' at offset {} is not a token id", shown, word->offset));
    }
    if (error != std::errc() || id >= vocab_size) {
      return wrong(fmt::format("id {} at offset {} is outside the vocabulary [0, {})",
                               word->text.substr(0, 40), word->offset, vocab_size));
    }
    ids.push_back(static_cast<TokenId>(id));
  }
  if (!words.wrong().empty()) return wrong(words.wrong());
  if (ids.empty()) return wrong("there are no ids");
  return ids;
}

}  // namespace kvasir::eval
