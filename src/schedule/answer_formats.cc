#include "schedule/answer_formats.h"

#include <chrono>
#include <span>
#include <utility>

#include "base/result.h"
#include "chat/answer_grammar.h"

namespace kvasir {
namespace {

// Wide nodes whose masks are computed ahead: each takes milliseconds.
constexpr int kMaxMasksAhead = 16;
// A twin's mask that knows tokens of so many bytes leaves little to do.
constexpr uint32_t kNearTwin = 8;
constexpr int kMaxNearMasksAhead = 512;
// How long a text waits for the memory of grammars that others hold.
constexpr size_t kLongText = 64 << 10;
constexpr std::chrono::milliseconds kLongPatience{30'000}, kPatience{100};
// Steps for all of these masks: some 50 ms.
constexpr uint64_t kMaxStepsAhead = 10'000'000;

}  // namespace

AnswerFormats::AnswerFormats(const Tokenizer* tokenizer, uint32_t vocab_size,
                             std::vector<TokenId> ends, uint64_t budget_bytes, bool one_by_one)
    : tokenizer_(tokenizer),
      vocab_size_(vocab_size),
      ends_(std::move(ends)),
      budget_bytes_(budget_bytes),
      one_by_one_(one_by_one) {}

uint64_t AnswerFormats::bytes() const {
  const MutexLock lock(mutex_);
  return store_ ? store_->bytes() + store_->masks().trie().bytes() : 0;
}

Result<const TokenTrie*> AnswerFormats::Words() {
  const MutexLock lock(mutex_);
  if (const Status made = MakeStore(); !made) {
    Error error = made.error();
    error.field = "samplers";
    return tl::unexpected(std::move(error));
  }
  return &store_->masks().trie();
}

Status AnswerFormats::MakeStore() {
  if (store_) return {};
  if (no_store_) return tl::unexpected(*no_store_);
  if (tokenizer_ == nullptr) return Fail(Code::kUnsupported, "needs a model with a tokenizer");
  const auto bytes = tokenizer_->BytesOfTokens();
  if (!bytes) {
    no_store_ = Error{Code::kUnsupported,
                      "what a token of this model adds to a text depends on those around it, so no "
                      "answer can be held to a format"};
    return tl::unexpected(*no_store_);
  }
  std::vector<std::string> texts = GrammarTexts(*tokenizer_, *bytes, ends_);
  texts.resize(vocab_size_);
  auto trie = std::make_shared<const TokenTrie>(texts, ends_);
  if (trie->bytes() > budget_bytes_ / 2) {
    no_store_ = Error{Code::kUnsupported,
                      fmt::format("the vocabulary needs {} bytes, more than half of the {} of "
                                  "--grammar-memory; give it more",
                                  trie->bytes(), budget_bytes_)};
    return tl::unexpected(*no_store_);
  }
  const uint64_t left = budget_bytes_ - trie->bytes();
  store_ = std::make_unique<GrammarStore>(std::move(trie), left);
  dropped_spaces_ = bytes->dropped_spaces;
  return {};
}

void AnswerFormats::ComputeMasks(TokenMasks& masks, const Grammar& grammar) {
  int num = 0, num_near = 0;
  WalkSteps steps(kMaxStepsAhead);
  for (Grammar::NodeId node = 0; node < grammar.num_nodes() && !steps.are_over(); ++node) {
    if (!grammar.is_wide(node)) continue;
    const NodeTwin& twin = grammar.twin(node);
    const bool is_near = twin.node != node && (twin.bytes == 0 || twin.bytes >= kNearTwin);
    if (is_near ? num_near++ < kMaxNearMasksAhead : num++ < kMaxMasksAhead) {
      masks.Compute(grammar, node, steps);
    }
  }
}

Result<CompiledFormat> AnswerFormats::Compile(const AnswerFormat& format, std::string_view owner) {
  const bool closes = format.think != nullptr && format.max_thought_tokens.has_value();
  if (!HasGrammar(format) && !closes) return CompiledFormat();
  GrammarStore* store = nullptr;
  size_t dropped_spaces = 0;
  {
    const MutexLock lock(mutex_);
    if (const Status made = MakeStore(); !made) {
      Error error = made.error();
      error.field = format.text ? format.text->field : closes ? "max_reasoning_tokens" : "tools";
      // Where nothing was promised, calls are read from free text.
      if (!format.text && !format.must_call && !closes) return CompiledFormat();
      return tl::unexpected(std::move(error));
    }
    store = store_.get();
    dropped_spaces = dropped_spaces_;
  }
  // The server compiles long texts on a thread apart: there they may wait for each other.
  const bool is_long = format.text && format.text->text.size() > kLongText;
  std::optional<std::chrono::milliseconds> patience = is_long ? kLongPatience : kPatience;
  const auto get = [&](AnswerPart part) {
    const Digest of_all = DigestOf(format, part, dropped_spaces);
    const Digest digest = Sha256().Update(std::as_bytes(std::span(of_all))).Update(owner).Finish();
    return store->Get(
        digest,
        [&] {
          std::unique_lock alone(compiling_, std::defer_lock);
          if (one_by_one_) alone.lock();
          auto grammar = CompileAnswer(format, part, dropped_spaces);
          if (grammar) ComputeMasks(store->masks(), **grammar);
          return grammar;
        },
        patience);
  };
  CompiledFormat compiled{.masks = &store->masks()};
  if (HasGrammar(format)) {
    KV_ASSIGN(compiled.whole, get(AnswerPart::kWhole));
    patience.reset();  // it must not wait for itself
  }
  if (closes) {
    KV_ASSIGN(compiled.closing, get(AnswerPart::kFromThoughtsEnd));
  }
  return compiled;
}

}  // namespace kvasir
