// The events of translations as the answers of POST /v1/translations and POST /translate.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/openai_response.h"

namespace kvasir {

// {"object": "list", "model", "data": [{"index", "text", "score", "hypotheses", "finish_reason",
// "kvasir"}], "usage"}: an entry for each text of the request, in its order; an empty text has "",
// and nothing else. Where texts are split, an entry has "sentences" instead of hypotheses and
// kvasir, with these. A stream has events of the same form: pieces of a text in their order, its
// end with score and kvasir, and at last one with "usage".
//
// LibreTranslate's: {"translatedText", "alternatives"}; never a stream. One thread at a time.
class TranslationAnswer : public Answer {
 public:
  // REQUIRES: spec.translation; its requests are `num_prompts`.
  TranslationAnswer(AnswerSpec spec, size_t num_prompts, std::string id,
                    const Tokenizer* tokenizer);

  Parts Body() const override;
  std::string ErrorEvent(const Error& error) const override;
  // The whole stream of a request whose texts are all empty.
  std::string EmptyStream() const { return EndOfStream(); }

 private:
  // Of a choice: what its score comes from.
  struct Scored {
    double sum = 0;              // of log probabilities
    std::optional<float> score;  // of a hypothesis
  };
  // Of a request in a stream: text that waits for the sentences before it.
  struct Waiting {
    size_t text = 0;  // which text it is a part of
    std::string unsent;
    bool finished = false, ended = false;  // all of its text has come; its receipt too
  };
  // Of a text in a stream.
  struct Flow {
    size_t part = 0;      // the one that is sent now
    bool joined = false;  // what stands in front of it is sent
    std::string before;   // the last bytes of its text that was sent
  };
  using TextParts = TranslationSpec::Parts;

  void See(uint32_t index, const Event& event) override;
  std::string StreamEvent(uint32_t index, const Event& event) override;
  std::string ProgressEvent(uint32_t, const Progress&) override { return ""; }
  std::string EndEvents(size_t prompt) override;
  void AddReceipt(size_t prompt, const Event& event) override;

  std::vector<size_t> Best(size_t request) const;
  double LengthOf(size_t choice) const;
  double SumOf(size_t choice) const;
  double ScoreOf(size_t choice) const;
  Parts TextOf(const TextParts& parts, size_t hypothesis) const;
  Parts QuotedText(const TextParts& parts, size_t hypothesis) const;
  void AddSums(const TextParts& parts, nlohmann::json* entry) const;
  nlohmann::json EntryOf(size_t request) const;
  nlohmann::json EntryOf(const TextParts& parts) const;
  Parts Hypotheses(size_t request) const;
  Parts SentenceList(const TextParts& parts) const;
  Parts EntryText(nlohmann::json entry, const TextParts& parts, std::string_view list_name,
                  Parts list) const;
  Parts Alternatives(const TextParts& parts) const;
  Parts LibreList(bool of_alternatives) const;
  std::string Flowing(size_t text);
  std::string Usage() const;
  std::string EventOf(nlohmann::json entry) const;
  std::string EndOfStream() const;
  Parts ListBody() const;
  Parts LibreBody() const;

  std::vector<Receipt> receipts_;  // [request], once it has ended
  std::vector<Scored> scored_;     // [choice]
  std::vector<Waiting> waiting_;   // [request], of streams
  std::vector<Flow> flows_;        // [text], of streams
};

}  // namespace kvasir
