#include "base/result.h"
#include "engine/assembly.h"
#include "kvasir/describe.h"

namespace kvasir {

Result<ModelDescription> DescribeModel(const EngineOptions& options) {
  KV_ASSIGN(Assembly assembly, Assemble(options, Need::kShapes));
  ModelCard card = CardOf(assembly);
  return ModelDescription{std::move(card), std::move(assembly.plan)};
}

}  // namespace kvasir
