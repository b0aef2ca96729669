#include "cache/kept_prompts.h"

#include <algorithm>
#include <utility>

#include "base/begins_with.h"
#include "base/wipe.h"

namespace kvasir {
KeptPrompts::KeptPrompts(std::vector<std::vector<TokenId>> prompts,
                         std::span<const TokenId> forgotten) {
  std::ranges::sort(prompts);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::span<const TokenId> ids = prompts[i];
    const bool is_beginning =
        i + 1 < prompts.size() && BeginsWith(std::span<const TokenId>(prompts[i + 1]), ids);
    if (is_beginning) {
      Wipe(&prompts[i]);
      continue;
    }
    Prompt kept{.on_path = static_cast<uint32_t>(SharedLength(ids, forgotten))};
    if (!prompts_.empty()) {
      const std::span<const TokenId> before = prompts_.back().ids;
      kept.shared = static_cast<uint32_t>(SharedLength(ids, before));
    }
    on_path_ = std::max(on_path_, kept.on_path);
    kept.ids = std::move(prompts[i]);
    prompts_.push_back(std::move(kept));
  }
}

KeptPrompts::~KeptPrompts() {
  for (Prompt& prompt : prompts_) Wipe(&prompt.ids);
}

}  // namespace kvasir
