#include "import/gguf_importer.h"

#include <utility>

#include "base/result.h"
#include "import/experts.h"
#include "import/gguf_metadata.h"
#include "import/gguf_parts.h"
#include "import/gguf_vocabulary.h"
#include "import/pooling_files.h"
#include "import/tensor_binding.h"
#include "import/tokenizer_files.h"

namespace kvasir {

namespace fs = std::filesystem;

Result<ImportedModel> ModelFromGguf(GgufFile gguf, const std::string& file) {
  ImportedModel model;
  KV_ASSIGN(model.config, GgufConfig(gguf, file));
  Metadata tokenizer(gguf, "tokenizer.", file);
  model.chat_template = tokenizer.Text("chat_template").value_or("");
  constexpr std::string_view kNamed = "tokenizer.chat_template.";  // as llama.cpp's converter
  for (auto key = gguf.metadata.lower_bound(kNamed);
       key != gguf.metadata.end() && key->first.starts_with(kNamed); ++key) {
    const std::string name = key->first.substr(kNamed.size());
    const auto text = tokenizer.Text("chat_template." + name);
    if (text && !text->empty() && name != "default") model.named_templates[name] = *text;
  }
  KV_TRY(tokenizer.status());
  model.special_tokens_json = GgufSpecialTokens(gguf);
  model.vocabulary = ReadGgufVocabulary(gguf, file);
  model.ends_by_name = EndsByName(gguf);
  model.pooling = GgufPooling(gguf, fs::path(file).filename().string());
  TensorCatalog catalog = CatalogOf(std::move(gguf.tensors));
  KV_TRY(SplitGgufExperts(model.config, catalog));
  KV_TRY(BindTensors(catalog, NameStyle::kGguf, file, model));
  return model;
}

Result<ImportedModel> ImportGgufFile(const fs::path& path, Need need) {
  const GgufExtent extent = need == Need::kShapes ? GgufExtent::kHeader : GgufExtent::kWhole;
  KV_ASSIGN(OpenedGguf opened, OpenGguf(path, extent));
  KV_ASSIGN(ImportedModel model, ModelFromGguf(std::move(opened.gguf), path.string()));
  model.path = path;
  model.name = opened.num_parts > 1 ? PartOf(path)->stem : path.stem().string();
  model.mapped_files = std::move(opened.files);
  KV_TRY(ReadTokenizerFiles(path.parent_path(), model));
  return model;
}

}  // namespace kvasir
