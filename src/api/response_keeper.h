// ResponseKeeper: stores a response when its answer has ended.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api/answer_keeper.h"
#include "api/stored_response.h"
#include "kvasir/session.h"

namespace kvasir {

// Finish stores the response. An answer whose response cannot be stored is an answer all the same:
// it says `"store": false`. Destroyed before that, it has stored nothing.
class ResponseKeeper : public AnswerKeeper {
 public:
  // Announces the response: who deletes it waits until this has stored it, or ends.
  // `prompt`: what the answer is generated from, with its tenant. `answer`: the client's, from
  // which this takes the id, the time and the form. `removals`: of the store, before the previous
  // response was found. The answer's tokenizer must outlive this.
  ResponseKeeper(const SessionStore& store, uint64_t removals, UnansweredResponse response,
                 const GenerateRequest& prompt, const Answer& answer);

  void Take(const Event& event) override;
  Status Finish() override;
  bool waits_for_disk() const override { return waits_for_disk_; }
  uint64_t held_bytes() const override;

 private:
  Status Store();

  SessionStore store_;                        // may outlive the server's
  std::shared_ptr<SessionStore::Turn> turn_;  // until the response is stored
  const uint64_t removals_;
  UnansweredResponse response_;
  const std::string tenant_;
  const PathSpace space_;
  std::vector<TokenId> ids_;  // of prompt and answer
  const size_t prompt_tokens_;
  const uint32_t answer_at_;  // in the prompt
  const bool waits_for_disk_;
  Answer answer_;        // whole, whether or not the client's streams
  std::string written_;  // by the model
  uint64_t new_bytes_ = 0;
};

}  // namespace kvasir
