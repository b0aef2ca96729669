#include "chat/builtin_templates.h"

#include <algorithm>
#include <utility>

namespace kvasir {
namespace {

// bos_token and eos_token may be undefined, so texts are joined by ~.
constexpr std::pair<std::string_view, std::string_view> kTemplates[] = {
    {"chatml",
     R"({%- for message in messages -%}
{{- '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- endif -%}
)"},
    {"llama2",
     R"({%- set held = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set held.system = '<<SYS>>\n' ~ message.content|trim ~ '\n<</SYS>>\n\n' -%}
{%- elif message.role == 'assistant' -%}
{{- ' ' ~ message.content|trim ~ ' ' ~ eos_token -}}
{%- else -%}
{{- bos_token ~ '[INST] ' ~ held.system ~ message.content|trim ~ ' [/INST]' -}}
{%- set held.system = '' -%}
{%- endif -%}
{%- endfor -%}
)"},
    {"llama3",
     R"({{- bos_token -}}
{%- for message in messages -%}
{%- set role = message.role if message.role in ['system', 'assistant'] else 'user' -%}
{{- '<|start_header_id|>' ~ role ~ '<|end_header_id|>\n\n' ~ message.content|trim ~ '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
{%- endif -%}
)"},
    {"mistral",
     R"({{- bos_token -}}
{%- set held = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set held.system = message.content ~ '\n\n' -%}
{%- elif message.role == 'assistant' -%}
{{- ' ' ~ message.content|trim ~ eos_token -}}
{%- else -%}
{{- '[INST] ' ~ held.system ~ message.content ~ '[/INST]' -}}
{%- set held.system = '' -%}
{%- endif -%}
{%- endfor -%}
)"},
    {"gemma",
     R"({{- bos_token -}}
{%- set held = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set held.system = message.content|trim ~ '\n\n' -%}
{%- else -%}
{%- set role = 'model' if message.role == 'assistant' else 'user' -%}
{{- '<start_of_turn>' ~ role ~ '\n' ~ held.system ~ message.content|trim ~ '<end_of_turn>\n' -}}
{%- set held.system = '' -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<start_of_turn>model\n' -}}
{%- endif -%}
)"},
    {"phi3",
     R"({%- for message in messages -%}
{%- set role = message.role if message.role in ['system', 'assistant'] else 'user' -%}
{{- '<|' ~ role ~ '|>\n' ~ message.content ~ '<|end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|assistant|>\n' -}}
{%- endif -%}
)"},
    {"command-r",
     R"({{- bos_token -}}
{%- set tokens = {'system': '<|SYSTEM_TOKEN|>', 'assistant': '<|CHATBOT_TOKEN|>'} -%}
{%- for message in messages -%}
{{- '<|START_OF_TURN_TOKEN|>' ~ tokens.get(message.role, '<|USER_TOKEN|>') -}}
{{- message.content|trim ~ '<|END_OF_TURN_TOKEN|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' -}}
{%- endif -%}
)"},
};

}  // namespace

std::optional<std::string_view> BuiltinTemplate(std::string_view name) {
  const auto* found =
      std::ranges::find(kTemplates, name, [](const auto& one) { return one.first; });
  return found == std::end(kTemplates) ? std::nullopt : std::optional(found->second);
}

std::vector<std::string_view> BuiltinTemplateNames() {
  std::vector<std::string_view> names;
  for (const auto& [name, source] : kTemplates) names.push_back(name);
  return names;
}

}  // namespace kvasir
