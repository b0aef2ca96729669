// For tests of drafts: a drafter that is right, wrong, or half right.
#pragma once

#include <optional>
#include <vector>

#include "base/random.h"
#include "schedule/request.h"
#include "testing/fake_runner.h"

namespace kvasir {

enum class TestDrafts { kNone, kMemory, kRight, kWrong, kHalfRight };

// Drafts what a FakeRunner will say of a sequence, or something else.
class TestDrafter {
 public:
  TestDrafter(const FakeRunner& runner, TestDrafts kind, uint64_t seed)
      : runner_(runner), kind_(kind), random_(seed) {}

  void operator()(const Request& request, const Sequence& sequence, Draft& draft) {
    std::vector<TokenId> tokens = sequence.tokens;
    std::optional<FakeRunner::BoundedText> bounded;
    if (request.retention) {
      bounded.emplace(runner_, *request.retention);
      for (const TokenId token : tokens) bounded->Append(token);
    }
    std::optional<FakeRunner::SpannedText> spanned;
    if (request.spans.plan) {
      spanned.emplace(runner_, *request.spans.plan, request.spec.prompt);
      for (const TokenId token : tokens) spanned->Append(token);
    }
    draft.num_tokens = static_cast<uint32_t>(random_.Below(kMaxDraft + 1));
    draft.num_equal = 2 + static_cast<uint32_t>(random_.Below(20));
    for (uint32_t i = 0; i < draft.num_tokens; ++i) {
      TokenId next = bounded   ? bounded->Next()
                     : spanned ? spanned->Next()
                               : runner_.NextToken(tokens);
      const bool is_wrong =
          kind_ == TestDrafts::kWrong || (kind_ == TestDrafts::kHalfRight && random_.Below(4) == 0);
      if (is_wrong) next = static_cast<TokenId>((static_cast<uint32_t>(next) + 1) % 64);
      draft.tokens[i] = next;
      tokens.push_back(next);
      if (bounded) bounded->Append(next);
      if (spanned) spanned->Append(next);
    }
  }

 private:
  const FakeRunner& runner_;
  const TestDrafts kind_;
  Random random_;
};

}  // namespace kvasir
