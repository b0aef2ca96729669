// Binding: from the tensors that a file has to the slots that an architecture needs.
#pragma once

#include <string>
#include <unordered_map>

#include "import/architecture.h"
#include "import/importer.h"
#include "import/tensor_view.h"
#include "kvasir/status.h"

namespace kvasir {

// Tensors by name.
using TensorCatalog = std::unordered_map<std::string, StoredTensor>;
TensorCatalog CatalogOf(std::vector<StoredTensor> tensors);

enum class NameStyle { kHuggingFace, kGguf };

// Fills embedding, norms, lm_head and layers of `model` by its config. Errors name `where` (the
// folder or file) and the tensors: kNotFound for missing ones, kUnsupported for a number type that
// weights cannot have and for a tensor of a layer that no slot takes (it would change what the
// layer computes; buffers that hold no weights are passed over), kCorruption for a shape that is
// not the config's. `model` is filled only on success.
Status BindTensors(const TensorCatalog& catalog, NameStyle style, const std::string& where,
                   ImportedModel& model);

}  // namespace kvasir
