#include "cli/text_translation.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "base/result.h"

namespace kvasir::cli {

struct TextTranslation::Answer {
  Line* line = nullptr;
  std::optional<TranslationEvents> events;  // from its submission on
  Translation translation;
  std::optional<Error> error;
};

struct TextTranslation::Line {
  TextLine line;
  std::optional<Sentences> sentences;  // of line.text, where lines are split
  std::vector<std::string_view> parts;
  std::vector<Answer> answers;  // of parts; its elements stay where they are
  size_t submitted = 0, ended = 0;
  std::optional<Error> error;
};

// Brings events from the engine's thread to the one that translates. Thread-safe.
class TextTranslation::Events {
 public:
  using Item = std::pair<Answer*, Event>;
  int fd() const { return wake_.fd(); }  // readable when there are some
  void Push(Answer* answer, const Event& event) {
    const MutexLock lock(mutex_);
    items_.emplace_back(answer, event);
    [[maybe_unused]] const int woken = eventfd_write(wake_.fd(), 1);  // has room until 2^64 - 1
  }
  std::vector<Item> Take() {
    const MutexLock lock(mutex_);
    eventfd_t count = 0;
    [[maybe_unused]] const int read = eventfd_read(wake_.fd(), &count);  // may be empty
    return std::exchange(items_, {});
  }

 private:
  const Descriptor wake_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  Mutex mutex_;
  std::vector<Item> items_ KV_GUARDED_BY(mutex_);
};

TextTranslation::TextTranslation(Engine& engine, TranslationOptions options)
    : engine_(engine), options_(std::move(options)), events_(std::make_shared<Events>()) {
  KV_CHECK(engine_.tokenizer() != nullptr && engine_.card().decoder_start);
}

TextTranslation::~TextTranslation() = default;

Status TextTranslation::Run(TextLines& lines,
                            const std::function<void(const TranslatedLine&)>& on_line,
                            const std::function<void(uint64_t tokens)>& on_progress) {
  KV_TRY(lines.Open());
  while (true) {
    Take(lines);
    SubmitAll();
    KV_TRY(Deliver(on_line));
    on_progress(tokens_);
    if (!open_.empty() || wants_input_) {
      Wait(lines);
    } else if (lines.at_end()) {
      return {};
    }
  }
}

bool TextTranslation::HasRoom() const {
  const size_t most = 16 * size_t{engine_.options().parallel};
  return !failed_ && open_.size() < most && open_bytes_ < TextLines::kMaxBytes;
}

void TextTranslation::Take(TextLines& lines) {
  wants_input_ = false;
  while (HasRoom()) {
    Result<std::optional<TextLine>> line = lines.Next();
    if (!line) return FailLast(std::move(line.error()));
    if (!*line) {
      wants_input_ = !lines.at_end();
      return;
    }
    Add(std::move(**line));
  }
}

void TextTranslation::Add(TextLine text) {
  open_.push_back(std::make_unique<Line>());
  Line& line = *open_.back();
  line.line = std::move(text);
  open_bytes_ += line.line.text.size();
  if (options_.splits_sentences) {
    line.sentences.emplace(line.line.text);
    for (size_t i = 0; i < line.sentences->size(); ++i) {
      line.parts.push_back(line.sentences->At(i));
    }
  } else if (!line.line.text.empty()) {
    line.parts.push_back(line.line.text);
  }
  line.answers.resize(line.parts.size(),
                      {.line = &line, .events = {}, .translation = {}, .error = {}});
}

void TextTranslation::FailLast(Error error) {
  open_.push_back(std::make_unique<Line>());
  open_.back()->error = std::move(error);
  failed_ = true;
}

void TextTranslation::SubmitAll() {
  const GenerateRequest& request = options_.request;
  const size_t width = std::max(request.beams ? request.beams->beams : 1, request.n);
  const size_t most = 2 * std::max<size_t>(engine_.options().parallel / width, 1);
  for (const auto& line : open_) {
    if (line->error) return;
    while (line->submitted < line->parts.size()) {
      if (in_flight_ >= most) return;
      const Result<bool> submitted = Submit(*line, line->submitted);
      if (!submitted) {
        line->error = submitted.error();
        failed_ = true;
        return;
      }
      if (!*submitted) return;
      ++line->submitted;
    }
  }
}

Result<std::vector<TokenId>> TextTranslation::SourceOf(std::string_view text) const {
  const auto encode = [&](size_t most) {
    return EncodeSource(*engine_.tokenizer(), text, options_.frame, most);
  };
  const uint32_t most = engine_.card().ctx_size;
  Result<std::vector<TokenId>> source = encode(most);
  if (source || source.error().code != Code::kExhausted) return source;
  KV_ASSIGN(const std::vector<TokenId> all, encode(std::numeric_limits<size_t>::max()));
  return Fail(Code::kInvalidArgument, "has {} tokens{}; the encoder reads at most {} at once{}",
              all.size(), options_.splits_sentences ? " in a sentence" : "", most,
              options_.splits_sentences ? "" : "; --split sentences translates it in parts");
}

Result<bool> TextTranslation::Submit(Line& line, size_t part) {
  const auto at_line = [&](Error error) {
    error.message = line.line.place + (error.field ? ": " + *error.field + " " : " ") +
                    std::move(error.message);
    error.field.reset();
    return tl::unexpected(std::move(error));
  };
  Result<std::vector<TokenId>> source = SourceOf(line.parts[part]);
  if (!source) return at_line(std::move(source.error()));
  if (source->size() == options_.frame.before.size() + options_.frame.after.size()) {
    ++line.ended;
    return true;
  }
  GenerateRequest request = options_.request;
  request.source = std::move(*source);
  Answer& answer = line.answers[part];
  answer.events.emplace(request, options_.length_penalty);
  const Result<RequestId> id = engine_.Submit(
      std::move(request),
      [events = events_, &answer](const Event& event) { events->Push(&answer, event); });
  if (!id && id.error().code == Code::kExhausted && in_flight_ > 0) return false;
  if (!id) return at_line(id.error());
  ++in_flight_;
  return true;
}

void TextTranslation::TakeEvents() {
  for (auto& [answer, event] : events_->Take()) {
    answer->events->Add(event);
    tokens_ += event.tokens.size();
    if (event.error) answer->error = std::move(event.error);
    if (!event.last) continue;
    answer->translation = answer->events->Take();
    answer->events.reset();
    --in_flight_;
    Line& line = *answer->line;
    ++line.ended;
    if (!answer->error || line.error) continue;
    line.error = std::move(answer->error);
    line.error->message = line.line.place + ": " + line.error->message;
    failed_ = true;
  }
}

Status TextTranslation::Deliver(const std::function<void(const TranslatedLine&)>& on_line) {
  while (!open_.empty()) {
    Line& line = *open_.front();
    if (line.error) return tl::unexpected(std::move(*line.error));
    if (line.ended < line.parts.size()) return {};
    TranslatedLine translated;
    std::vector<std::string> texts;
    for (Answer& answer : line.answers) {
      texts.push_back(answer.translation.text());
      translated.sentences.push_back(std::move(answer.translation));
    }
    if (line.sentences) {
      translated.text = line.sentences->Join(texts);
    } else if (!texts.empty()) {
      translated.text = std::move(texts.front());
    }
    on_line(translated);
    open_bytes_ -= line.line.text.size();
    open_.pop_front();
  }
  return {};
}

void TextTranslation::Wait(TextLines& lines) {
  pollfd waits[] = {{events_->fd(), POLLIN, 0}, {wants_input_ ? lines.fd() : -1, POLLIN, 0}};
  if (poll(waits, 2, -1) <= 0) return;
  TakeEvents();
  if (waits[1].revents == 0) return;
  if (const Status read = lines.Read(); !read) FailLast(read.error());
}

}  // namespace kvasir::cli
