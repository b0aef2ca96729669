// An answer of translations: POST /v1/translations and POST /translate.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/answer_writer.h"

namespace kvasir {

// Which requests make the answer to each text, and what the answer says.
struct TranslationSpec {
  // A sentence, or all of a text that is not split.
  struct Sentence {
    std::optional<size_t> request;  // absent: it has no tokens, and neither has its answer
    std::string break_before;       // Sentences::BreakBefore
  };
  using Text = std::vector<Sentence>;  // empty: a text without sentences
  std::vector<Text> texts;
  bool splits_sentences = false;
  bool is_search = false;       // by beams
  float length_penalty = 1;     // of scores
  std::vector<TokenId> prompt;  // what the tokens of an answer begin with

  // What LibreTranslate's /translate asks for.
  struct Libre {
    bool has_list = false;  // `q` is a list, and so is the answer
    uint32_t alternatives = 0;
  };
  std::optional<Libre> libre;
};

// {"object": "list", "model", "data": [{"index", "text", "score", "hypotheses", "finish_reason",
// "kvasir"}], "usage"}: an entry for each text of the request, in its order; an empty text has "",
// and nothing else. Where texts are split, an entry has "sentences" instead of hypotheses and
// kvasir, with these. A stream has events of the same form: pieces of a text in their order, its
// end with score and kvasir, and at last one with "usage".
//
// LibreTranslate's: {"translatedText", "alternatives"}; never a stream.
class TranslationWriter : public AnswerWriter {
 public:
  explicit TranslationWriter(TranslationSpec spec) : spec_(std::move(spec)) {}

  void Begin(const Answer& answer) override;
  void See(const Answer& answer, const Answer::Step& step, const Event& event) override;
  std::string StepEvents(const Answer& answer, const Answer::Step& step,
                         const Event& event) override;
  std::string ProgressEvent(const Answer&, uint32_t, const Progress&) override { return ""; }
  std::string EndEvents(const Answer& answer, size_t prompt) override;
  // Writes an answer whose texts are all empty.
  std::string EmptyStream(const Answer& answer) const override { return EndOfStream(answer); }
  std::string ErrorEvent(const Error& error) const override;
  Parts Body(const Answer& answer) const override;
  uint64_t held_bytes() const override { return held_bytes_; }

 private:
  // What the score of a choice comes from.
  struct Scored {
    double sum = 0;              // of log probabilities
    std::optional<float> score;  // of a hypothesis
  };
  // A request in a stream: text that waits for the sentences before it.
  struct Waiting {
    size_t text = 0;  // which text it is a sentence of
    std::string unsent;
    bool finished = false, ended = false;  // all of its text has come; its receipt too
  };
  // A text in a stream.
  struct Flow {
    size_t sentence = 0;  // the one that is sent now
    bool joined = false;  // what stands in front of it is sent
    std::string before;   // the last bytes of its text that was sent
  };
  using Text = TranslationSpec::Text;

  std::vector<size_t> Best(const Answer& answer, size_t request) const;
  double LengthOf(const Answer& answer, size_t choice) const;
  double SumOf(const Answer& answer, size_t choice) const;
  double ScoreOf(const Answer& answer, size_t choice) const;
  Parts TextOf(const Answer& answer, const Text& sentences, size_t hypothesis) const;
  Parts QuotedText(const Answer& answer, const Text& sentences, size_t hypothesis) const;
  void AddSums(const Answer& answer, const Text& sentences, nlohmann::json* entry) const;
  nlohmann::json EntryOf(const Answer& answer, size_t request) const;
  nlohmann::json EntryOf(const Answer& answer, const Text& sentences) const;
  Parts Hypotheses(const Answer& answer, size_t request) const;
  Parts SentenceList(const Answer& answer, const Text& sentences) const;
  Parts EntryText(const Answer& answer, nlohmann::json entry, const Text& sentences,
                  std::string_view list_name, Parts list) const;
  Parts Alternatives(const Answer& answer, const Text& sentences) const;
  Parts LibreList(const Answer& answer, bool of_alternatives) const;
  std::string Flowing(const Answer& answer, size_t text);
  static std::string Usage(const Answer& answer);
  static std::string EventOf(const Answer& answer, nlohmann::json entry);
  std::string EndOfStream(const Answer& answer) const;
  Parts ListBody(const Answer& answer) const;
  Parts LibreBody(const Answer& answer) const;

  const TranslationSpec spec_;
  std::vector<Scored> scored_;    // [choice]
  std::vector<Waiting> waiting_;  // [request], of streams
  std::vector<Flow> flows_;       // [text], of streams
  uint64_t held_bytes_ = 0;
};

}  // namespace kvasir
