#include "import/gguf_parts.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/result.h"
#include "import/gguf_metadata.h"
#include "import/importer.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using MappedFiles = std::vector<std::shared_ptr<const MappedFile>>;

Result<GgufFile> OpenPart(const fs::path& path, GgufExtent extent, MappedFiles& files) {
  KV_ASSIGN(auto mapped, MappedFile::Open(path));
  KV_TRY(CheckNoLfsPointer(mapped->bytes(), path.string()));
  KV_ASSIGN(GgufFile gguf, ParseGguf(mapped->bytes(), path.string(), extent));
  files.push_back(std::move(mapped));
  return gguf;
}

// Adds the tensors of the other parts to those of the first one, which is `path`. Returns how many
// parts there are; 1: the file is not split.
Result<uint32_t> AddParts(const fs::path& path, GgufExtent extent, GgufFile& gguf,
                          MappedFiles& files) {
  const std::string file = path.string();
  const Metadata split(gguf, "split.", file);
  const uint64_t count = split.Whole("count").value_or(1);
  if (count <= 1) return 1;
  const std::optional<PartName> name = PartOf(path);
  if (!name || name->count != count) {
    return Fail(Code::kInvalidArgument,
                "{}: is one of {} parts of a model, but its name does not say so; parts are called "
                "NAME-00001-of-{:05}.gguf",
                path.string(), count, count);
  }
  if (name->number != 1 || split.Whole("no").value_or(0) != 0) {
    return Fail(Code::kInvalidArgument, "{}: is part {} of {} of a model; give the first one, {}",
                path.string(), split.Whole("no").value_or(name->number - 1) + 1, count,
                name->Text(1));
  }
  for (uint32_t number = 2; number <= count; ++number) {
    const fs::path other = path.parent_path() / name->Text(number);
    KV_ASSIGN(const bool exists, Exists(other));
    if (!exists) {
      return Fail(Code::kNotFound, "{}: part {} of {} is missing; all parts must lie in one folder",
                  other.string(), number, count);
    }
    KV_ASSIGN(GgufFile part, OpenPart(other, extent, files));
    const Metadata said(part, "split.", other.string());
    if (said.Whole("no") != number - 1 || said.Whole("count") != count) {
      return Fail(Code::kCorruption, "{}: does not say that it is part {} of {}", other.string(),
                  number, count);
    }
    std::ranges::move(part.tensors, std::back_inserter(gguf.tensors));
  }
  if (const auto all = split.Whole("tensors.count"); all && *all != gguf.tensors.size()) {
    return Fail(Code::kCorruption, "{}: the {} parts have {} tensors, but the first says {}",
                path.string(), count, gguf.tensors.size(), *all);
  }
  std::unordered_map<std::string_view, const StoredTensor*> by_name;
  for (const StoredTensor& tensor : gguf.tensors) {
    const auto [other, is_new] = by_name.emplace(tensor.name, &tensor);
    if (is_new) continue;
    return Fail(Code::kCorruption, "{}: tensor '{}' is in {} too", tensor.file, tensor.name,
                other->second->file);
  }
  return static_cast<uint32_t>(count);
}

}  // namespace

std::optional<PartName> PartOf(const fs::path& path) {
  return ParsePartName(path.filename().string());
}

Result<OpenedGguf> OpenGguf(const fs::path& path, GgufExtent extent) {
  OpenedGguf opened;
  KV_ASSIGN(opened.gguf, OpenPart(path, extent, opened.files));
  KV_ASSIGN(opened.num_parts, AddParts(path, extent, opened.gguf, opened.files));
  return opened;
}

}  // namespace kvasir
