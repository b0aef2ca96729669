// Decoders of tokenizer.json, token by token.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

// One stage of a running decoder. A token comes as Append (any number of fragments of whole
// characters) and EndToken; Finish once at the end. A stage passes on text once it is certain. One
// thread at a time.
class DecodeStage {
 public:
  explicit DecodeStage(DecodeStage* next) : next_(next) {}
  virtual ~DecodeStage() = default;
  virtual void Append(std::string_view text) = 0;
  virtual void EndToken() = 0;
  virtual void Finish() { next_->Finish(); }

 protected:
  DecodeStage* const next_;  // null in the last stage
};

// A running decoder of one sequence: memory and time per token do not depend on the tokens before.
class DecoderRun {
 public:
  void Append(std::string_view token, std::string* out);  // adds the text that is now certain
  void Finish(std::string* out);                          // adds the rest

 private:
  friend class Decoder;
  class Sink : public DecodeStage {
   public:
    Sink() : DecodeStage(nullptr) {}
    void Append(std::string_view text) override { out->append(text); }
    void EndToken() override {}
    void Finish() override {}
    std::string* out = nullptr;
  };
  std::unique_ptr<Sink> sink_ = std::make_unique<Sink>();
  std::vector<std::unique_ptr<DecodeStage>> stages_;  // from the last to the first
};

// Immutable; thread-safe.
class Decoder {
 public:
  // Parses the value of "decoder"; null puts spaces between tokens. kUnsupported names a type that
  // is not implemented, or that cannot work token by token in its place.
  static Result<Decoder> Parse(const nlohmann::json& value);
  // REQUIRES: the Decoder outlives the run.
  DecoderRun Start() const;
  // Tells whether a text of ids is the bytes of its tokens, one after the other.
  bool joins_bytes() const { return joins_bytes_; }

  // What tokens add to a text, where it does not depend on others.
  struct Bytes {
    std::string token;          // of one token, inside of a text
    size_t dropped_spaces = 0;  // at a text's beginning
  };
  // Absent: it depends on others. O(token).
  std::optional<Bytes> BytesOf(std::string_view token) const;

  // Makes the stage that passes its text on to `next`.
  class Spec {
   public:
    virtual ~Spec() = default;
    virtual std::unique_ptr<DecodeStage> Make(DecodeStage* next) const = 0;
    // Turns the bytes into those that the stage passes on. `fused`: all tokens are one by now.
    // False: there are no such bytes.
    virtual bool Apply(bool* fused, Bytes* bytes) const = 0;
  };

 private:
  std::vector<std::unique_ptr<Spec>> specs_;
  bool joins_bytes_ = false;
};

}  // namespace kvasir
