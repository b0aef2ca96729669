// An answer as OpenAI's /v1/responses has it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "api/answer_parts.h"
#include "api/answer_writer.h"
#include "api/text_frame.h"

namespace kvasir {

// What became of the storing of a response. Thread-safe: relaxed, since a number says all.
struct StoredMark {
  std::atomic<bool> is_stored{true};
  std::atomic<int64_t> completed_s{0};  // as it was stored; 0: it was not
};

// What a request of /v1/responses says of the form of its answer.
struct ResponsesForm {
  bool encodes_thoughts = false;  // `encrypted_content`
  bool parallel_calls = true;
  std::optional<uint32_t> max_tokens;
  float temperature = 1, top_p = 1;
  // JSON as it was given: the answer repeats it.
  std::string tool_choice = R"("auto")", metadata = "{}";
  std::string previous;                // the response that it goes on from; "": none
  bool drops_oldest = false;           // `truncation`
  bool prewarms = false;               // it ends before its answer begins
  std::shared_ptr<StoredMark> stored;  // null: it is not to be stored
};

// Items: a thought, a message, calls. A stream has response.created and response.in_progress, the
// events of each item, and response.completed, .incomplete or .failed, which has all of them and
// the receipt; each event has a `sequence_number`. One choice.
class ResponsesWriter : public AnswerWriter {
 public:
  explicit ResponsesWriter(ResponsesForm form) : form_(std::move(form)) {}

  void Begin(const Answer& answer) override;
  std::string StepEvents(const Answer& answer, const Answer::Step& step,
                         const Event& event) override;
  std::string ProgressEvent(const Answer&, uint32_t, const Progress&) override { return ""; }
  std::string EndEvents(const Answer& answer, size_t prompt) override;
  std::string PingEvent(const Answer& answer) override;
  std::string ErrorEvent(const Error& error) const override;
  Parts Body(const Answer& answer) const override;
  uint64_t held_bytes() const override;

 private:
  using Kind = PartOfAnswer::Kind;

  // The item that a stream is about.
  struct Item {
    Kind kind;
    std::string text;  // or arguments
    std::string call_id, name;
    TextFrame delta = {};  // a stream's event of a piece, up to its number
  };

  nlohmann::json HeadOf(const Item& item, size_t index, const char* status) const;
  // Returns what stands around an item's text.
  TextFrame FrameOf(const Item& item, size_t index, const char* status) const;
  std::string TextOf(const Item& item, size_t index, const char* status) const;
  std::string ItemId(Kind kind, size_t index) const;
  bool IsCut(const Answer& answer) const;
  nlohmann::json Envelope(const char* status) const;
  nlohmann::json FinalEnvelope(const Answer& answer) const;

  std::string Named(const char* type, nlohmann::json fields);
  // Returns what an event of the open item has, without its number.
  nlohmann::json ItemFields(const char* type) const;
  std::string ItemEvent(const char* type, nlohmann::json fields);
  TextFrame DeltaFrame() const;
  // Returns an event with an object that is text already, as `name`.
  std::string TextEvent(const char* type, const char* name, const std::string& object,
                        nlohmann::json fields);
  std::string Start();
  std::string Take(const AnswerEvent& piece);
  std::string BeginItem(Item item);
  std::string Close(const char* status);
  std::string Add(std::string_view text);

  const ResponsesForm form_;
  std::string id_, model_;
  int64_t created_unix_s_ = 0;
  uint64_t next_number_ = 0;
  std::optional<Item> open_;
  std::string items_;  // those that have ended, joined by commas
  size_t num_items_ = 0;
};

}  // namespace kvasir
