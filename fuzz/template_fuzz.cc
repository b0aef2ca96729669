// Renders any chat template over any messages: first the template, then a zero byte and the content
// of the messages. It may fail, but must not crash or take long. (Memory is limited by the quota
// and by tools/fuzz.sh.)
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/memory_meter.h"
#include "chat/chat_template.h"
#include "cost_limits.h"
#include "fuzz_target.h"

namespace kvasir {
namespace {

constexpr uint64_t kTemplateQuotaBytes = 64 << 20;

void Render(const ChatTemplate& parsed, std::string_view content) {
  JsonTree tree;
  std::vector<JsonValue> messages;
  for (int i = 0; i < 40; ++i) {
    messages.push_back(tree.Object(
        {{"role", tree.String(i % 2 ? "assistant" : "user")}, {"content", tree.String(content)}}));
  }
  const JsonValue tool = tree.Object(
      {{"type", tree.String("function")}, {"function", tree.Object({{"name", tree.String("f")}})}});
  const JsonValue variables = tree.Object({{"text", tree.String(content)}, {"n", JsonValue(3.5)}});
  MemoryQuota quota(kTemplateQuotaBytes);
  MemoryMeter meter(quota);
  try {
    const auto chat = parsed.Render(tree.Array(messages), tree.Array({&tool, 1}), variables,
                                    {.bos_token = "<s>", .eos_token = "</s>", .now_unix_s = 1});
    if (!chat) return;
    size_t done = 0;
    for (const auto& [begin, end] : chat->literal) {
      KV_CHECK(begin >= done && end > begin && end <= chat->text.size());
      done = end;
    }
    KV_CHECK(chat->message_end.size() == messages.size());
  } catch (const QuotaSpent&) {
  }
}

}  // namespace
}  // namespace kvasir

KV_FUZZ_TARGET(template)(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), input.size());
  const kvasir::CpuLimit limit;
  if (const auto parsed = kvasir::ChatTemplate::Parse(input.substr(0, end))) {
    kvasir::Render(**parsed, input.substr(std::min(end + 1, input.size())));
  }
  limit.Check(size);
  return 0;
}
