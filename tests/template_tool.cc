// Renders chat templates: reads and writes one JSON object per line. tests/template_oracle.py
// compares it with jinja2. In: {template, messages, tools, variables, add_generation_prompt,
// continues, bos, eos, now}. Out: {rendered, literal, message_end} or {error}.
//
// For tests/template_cost_test.py: {template, messages, variables, fill: {bytes, unit, quota}} adds
// the variables `text` (units up to so many bytes), `list` (the same in items of 128), `dict` (in
// keys of 128) and `messages` (in messages of 256, if none are given), and answers {cpu_ms,
// peak_bytes, rendered_bytes} or {error, ...}. {"names": true} lists what a template can use,
// {"builtin": true} the built-in templates.
#include <malloc.h>

#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json_tree_for_test.h"
#include "base/memory_meter.h"
#include "chat/builtin_templates.h"
#include "chat/chat_template.h"
#include "jinja/builtins.h"

namespace {

using Json = nlohmann::ordered_json;

Json Render(const Json& in) {
  const auto parsed = kvasir::ChatTemplate::Parse(in.value("template", ""));
  if (!parsed) return {{"error", parsed.error().message}};
  kvasir::ChatRenderOptions options;
  options.add_generation_prompt = in.value("add_generation_prompt", false);
  const std::string continues = in.value("continues", "");
  if (continues == "content") options.continues = kvasir::Continued::kContent;
  if (continues == "reasoning_content") options.continues = kvasir::Continued::kReasoningContent;
  options.bos_token = in.value("bos", "");
  options.eos_token = in.value("eos", "");
  options.now_unix_s = in.value("now", int64_t{0});
  kvasir::JsonTree tree;
  const auto field = [&](const char* name) {
    return in.contains(name) ? kvasir::TreeOf(in[name], &tree) : kvasir::JsonValue();
  };
  const auto chat =
      (*parsed)->Render(field("messages"), field("tools"), field("variables"), options);
  if (!chat) return {{"error", chat.error().message}};
  return {{"rendered", chat->text}, {"literal", chat->literal}, {"message_end", chat->message_end}};
}

double CpuMs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

// The data of a cost test, limited like a body: the server takes 65,536 values. Made here, because
// lines of megabytes would measure the pipe; only variables that the template names are made.
struct Filled {
  kvasir::JsonTree tree;
  kvasir::JsonValue messages, variables;

  Filled(const Json& in, const std::string& unit, size_t bytes) {
    const std::string source = in.value("template", "");
    const auto named = [&](const char* name) { return source.find(name) != source.npos; };
    const auto filled = [&](size_t size) {
      std::string text;
      while (text.size() + unit.size() <= size) text += unit;
      return text;
    };
    std::vector<kvasir::JsonValue::Member> all, dict;
    if (named("text")) all.push_back({"text", tree.String(filled(bytes))});
    const std::string item = filled(128), content = filled(256);
    std::vector<kvasir::JsonValue> list, chat;
    for (size_t i = 0; i < bytes / 128 && named("list"); ++i) list.push_back(tree.String(item));
    for (size_t i = 0; i < bytes / 128 && named("dict"); ++i) {
      const std::string key = "k" + std::to_string(i * 7919 % 1'000'003) + "_" + std::to_string(i);
      dict.push_back({tree.KeepText(i == 0 ? key : key + item), kvasir::JsonValue(int64_t(i))});
    }
    for (size_t i = 0; i < bytes / 256 && named("messages"); ++i) {
      chat.push_back(
          tree.Object({{"role", tree.String("user")}, {"content", tree.String(content)}}));
    }
    all.push_back({"list", tree.Array(list)});
    all.push_back({"dict", tree.Object(std::move(dict))});
    if (in.contains("variables")) {
      for (const auto& [name, value] : in["variables"].items()) {
        all.push_back({tree.KeepText(name), kvasir::TreeOf(value, &tree)});
      }
    }
    variables = tree.Object(std::move(all));
    messages = in.contains("messages") ? kvasir::TreeOf(in["messages"], &tree) : tree.Array(chat);
  }
};

Json Cost(const Json& in) {
  const Json& fill = in["fill"];
  const auto parsed = kvasir::ChatTemplate::Parse(in.value("template", ""));
  if (!parsed) return {{"error", parsed.error().message}};
  const Filled data(in, fill.value("unit", "a"), fill.value("bytes", size_t{1000}));
  kvasir::MemoryQuota quota(fill.value("quota", uint64_t{1} << 40));
  const double before_ms = CpuMs();
  kvasir::MemoryMeter meter(quota);
  Json out;
  try {
    const auto chat = (*parsed)->Render(data.messages, {}, data.variables, {});
    meter.Stop();
    out =
        chat ? Json{{"rendered_bytes", chat->text.size()}} : Json{{"error", chat.error().message}};
  } catch (const kvasir::QuotaSpent&) {
    meter.Stop();
    out = {{"error", "quota"}};
  }
  out["cpu_ms"] = CpuMs() - before_ms;
  out["peak_bytes"] = meter.peak_bytes();
  return out;
}

Json Names() {
  namespace jinja = kvasir::jinja;
  return {{"filters", jinja::FilterNames()},
          {"tests", jinja::TestNames()},
          {"functions", jinja::FunctionNames()},
          {"methods", jinja::TextMethodNames()}};
}

Json Answer(const Json& in) {
  if (!in.is_object()) return {{"error", "the line is not a JSON object"}};
  if (in.contains("builtin")) {
    Json sources;
    for (const auto name : kvasir::BuiltinTemplateNames()) {
      sources[std::string(name)] = *kvasir::BuiltinTemplate(name);
    }
    return sources;
  }
  return in.contains("names") ? Names() : in.contains("fill") ? Cost(in) : Render(in);
}

}  // namespace

int main() {
  mallopt(M_MMAP_THRESHOLD, 256 << 10);  // as in the server
  mallopt(M_TRIM_THRESHOLD, 256 << 10);
  for (std::string line; std::getline(std::cin, line);) {
    const Json in = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const Json out = Answer(in);
    std::cout << out.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
  return 0;
}
