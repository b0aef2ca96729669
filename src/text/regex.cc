#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <new>

#include "base/check.h"
#include "base/result.h"
#include "base/utf8.h"

namespace kvasir {
namespace {

constexpr size_t kMaxPatternBytes = 64 << 10;
constexpr uint32_t kMatchSteps = 10'000'000;  // tens of milliseconds; real patterns need thousands
constexpr uint32_t kHeapKiB = 64 << 10;

PCRE2_SPTR Bytes(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::string MessageOf(int error) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(error, buffer, sizeof(buffer)) < 0) return "unknown error";
  return reinterpret_cast<const char*>(buffer);
}

int OnReport(pcre2_callout_block* report, void* scratch_of_thread);

// What one search writes to: one per thread, so that a Regex stays immutable and a search allocates
// nothing.
struct Scratch {
  uint64_t work_left = 0;  // of the search that runs
  size_t at = 0;           // where it reported last

  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 << 10, 1 << 20, nullptr);

  Scratch() {
    if (data == nullptr || context == nullptr) throw std::bad_alloc();
    pcre2_set_match_limit(context, kMatchSteps);
    pcre2_set_heap_limit(context, kHeapKiB);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_callout(context, &OnReport, this);
  }
  ~Scratch() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    if (stack != nullptr) pcre2_jit_stack_free(stack);
  }
};

// Takes a report of a running search: the way since the last one, forth or back, is its work.
int OnReport(pcre2_callout_block* report, void* scratch_of_thread) {
  auto& scratch = *static_cast<Scratch*>(scratch_of_thread);
  const size_t at = report->current_position;
  const uint64_t work = 1 + (at > scratch.at ? at - scratch.at : scratch.at - at);
  scratch.at = at;
  if (work > scratch.work_left) return PCRE2_ERROR_CALLOUT;
  scratch.work_left -= work;
  return 0;
}

Scratch& ThreadScratch() {
  thread_local Scratch scratch;
  return scratch;
}

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::CompilePcre(const std::string& pcre, std::string_view shown) {
  std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // Ruby's ^ $ . know this one only
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_unique<Code>();
  code->code = pcre2_compile(
      Bytes(pcre), pcre.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE | PCRE2_NEVER_BACKSLASH_C,
      &error, &offset, context.get());
  if (code->code == nullptr && error == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
  if (code->code == nullptr) {
    return Fail(kvasir::Code::kCorruption, "regular expression {}: {}", shown.substr(0, 200),
                MessageOf(error));
  }
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);  // without JIT the same code is interpreted
  return Regex(std::move(code));
}

Result<Regex> Regex::Compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes || FirstInvalidUtf8(pattern) != pattern.size()) {
    return Fail(kvasir::Code::kCorruption,
                "regular expression of {} bytes; at most {} bytes of UTF-8 are supported",
                pattern.size(), kMaxPatternBytes);
  }
  KV_ASSIGN(const std::string pcre, TranslateOniguruma(pattern));
  return CompilePcre(pcre, pattern);
}

const Regex& Regex::RustWords() {
  static const Regex* const words = [] {
    const std::string word = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control})";
    auto regex = CompilePcre("[" + word + "]+|[^" + word + R"(\p{White_Space}]+)", "words");
    KV_CHECK(regex.has_value());
    return new Regex(std::move(*regex));
  }();
  return *words;
}

Result<std::optional<TextMatch>> Regex::Finder::Next() {
  Scratch& scratch = ThreadScratch();
  while (pos_ <= text_.size()) {
    scratch.work_left = work_left_;
    scratch.at = pos_;
    const auto match = [&](uint32_t options) {
      return pcre2_match(regex_.code_->code, Bytes(text_), text_.size(), pos_,
                         options | PCRE2_NO_UTF_CHECK, scratch.data, scratch.context);
    };
    int count = match(0);
    if (count == PCRE2_ERROR_JIT_STACKLIMIT) count = match(PCRE2_NO_JIT);
    work_left_ = scratch.work_left;
    if (count == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (count < 0) {
      return Fail(kvasir::Code::kInvalidArgument,
                  "tokenizer: a regular expression needs too much work on this text ({})",
                  count == PCRE2_ERROR_CALLOUT ? "it scans the same text again and again"
                                               : MessageOf(count));
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(scratch.data);
    const TextMatch found{range[0], range[1]};
    if (found.begin < pos_ || found.end < found.begin) {  // \K in a look-around
      return Fail(kvasir::Code::kInvalidArgument,
                  "tokenizer: a regular expression matched backwards");
    }
    if (found.begin == found.end && last_end_ == found.end) {
      if (pos_ == text_.size()) return std::nullopt;
      NextChar(text_, &pos_);
      continue;
    }
    pos_ = found.end;
    last_end_ = found.end;
    return found;
  }
  return std::nullopt;
}

}  // namespace kvasir
