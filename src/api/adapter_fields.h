// What requests say of adapters: the field `lora`, and names of adapters that are model ids.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "api/model_view.h"
#include "base/json_fields.h"
#include "kvasir/adapters.h"
#include "kvasir/engine.h"

namespace kvasir {

// Reads the list of `field`: objects with `id` and `scale`, as llama.cpp's server takes them.
// Absent: the field is not there. Fails the field of what is wrong; ids may still be unknown to the
// engine.
std::optional<std::vector<AdapterChoice>> ReadAdapterChoices(JsonFields& fields,
                                                             std::string_view field);
// Returns the adapter whose name is this model id; absent: no adapter has it.
std::optional<AdapterCard> AdapterNamed(std::string_view name, const ModelView& model);
// Sets the adapters of a request: those of `lora`, else the one whose name is the request's model,
// `name`. If that adapter was unloaded meanwhile, the field `model` fails as CheckModel says.
void ReadAdapters(JsonFields& fields, std::string_view name, const ModelView& model,
                  GenerateRequest* request);

}  // namespace kvasir
