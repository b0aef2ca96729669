#include "server/embedding_routes.h"

#include "api/embedding_request.h"
#include "server/request_schema.h"

namespace kvasir {

void AddEmbeddingRoutes(GenerationStarter& generations, RouteTable* table) {
  table->Add({.path = "/v1/embeddings",
              .method = "POST",
              .handler = [&generations](const Call& call) -> Outcome {
                return generations.Start(ParseEmbeddingRequest(call.request.body, call.model), call,
                                         "input");
              },
              .access = Access::kTenant,
              .work = Route::kGeneration,
              .for_model = Route::kTextModel,
              .description = {.summary = "Embeds texts, or token ids.",
                              .properties = EmbeddingSchema(),
                              .required = R"(["input"])"}});
}

}  // namespace kvasir
