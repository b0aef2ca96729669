#include "cli/span_flags.h"

#include "base/result.h"
#include "kvasir/retention.h"

namespace kvasir::cli {

std::vector<Flag> SpanFlags() {
  return {{"spans", "21:61,61:98",
           "with --ids: tokens [21, 61) and [61, 98) are computed and found apart from what stands "
           "before them"},
          {"seam", "N",
           "with --spans: the first N tokens of each are computed again in their place (default "
           "32)"},
          {"span-head", "N",
           "with --spans: the first N tokens of the prompt, which spans are computed after "
           "(default: all before the first span)"}};
}

Result<std::optional<PromptSpans>> SpansOf(const Args& args) {
  const auto text = args.Text("spans");
  for (const char* flag : {"seam", "span-head"}) {
    if (args.Has(flag) && !text) {
      return Fail(Code::kInvalidArgument, "--{}: needs --spans BEGIN:END,...", flag);
    }
  }
  if (!text) return std::nullopt;
  if (!args.Has("ids")) {
    return Fail(Code::kInvalidArgument, "--spans: needs a prompt of ids; give --ids 1,2,3");
  }
  PromptSpans choice;
  KV_ASSIGN(choice.spans, ParsePromptSpans(*text));
  KV_ASSIGN(const uint64_t seam, args.Uint("seam", 0, kMaxSeamTokens, kDefaultSeamTokens));
  choice.seam = static_cast<uint32_t>(seam);
  if (args.Has("span-head")) {
    KV_ASSIGN(const uint64_t head, args.Uint("span-head", 0, kMaxRetainedTokens, 0));
    choice.head = static_cast<uint32_t>(head);
  }
  return choice;
}

}  // namespace kvasir::cli
