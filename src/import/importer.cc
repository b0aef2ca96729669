#include "import/importer.h"

#include <algorithm>

#include "base/mapped_file.h"
#include "base/result.h"
#include "base/system_error.h"
#include "import/file_watch.h"
#include "import/gguf_importer.h"
#include "import/gguf_parts.h"
#include "import/shard_index.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

struct Source {
  fs::path path;  // absolute, without a trailing slash
  bool is_folder;
  std::optional<fs::path> ct2_folder = std::nullopt;
};

// Returns the folder with the model.bin of CTranslate2: this one, or `model` in it. Absent:
// neither, or the folder has weights in safetensors. What PyTorch writes is called
// pytorch_model.bin.
Result<std::optional<fs::path>> Ct2FolderIn(const fs::path& folder) {
  for (const std::string_view name : {std::string_view("model.safetensors"), kShardIndexFile}) {
    KV_ASSIGN(const bool exists, Exists(folder / name));
    if (exists) return std::nullopt;
  }
  for (const fs::path& path : {folder, folder / "model"}) {
    KV_ASSIGN(const bool exists, Exists(path / "model.bin"));
    if (exists) return path;
  }
  return std::nullopt;
}

// Returns the GGUF file of a folder without config.json. Absent when the folder has a config.json
// or no GGUF file; kInvalidArgument when it has several.
Result<std::optional<fs::path>> OnlyGguf(const fs::path& folder) {
  KV_ASSIGN(const bool has_config, Exists(folder / "config.json"));
  if (has_config) return std::nullopt;
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".gguf") found.push_back(entry.path());
  }
  if (found.empty()) return std::nullopt;
  std::ranges::sort(found);
  const fs::path first = found.front();
  std::erase_if(found, [](const fs::path& path) {  // a model in parts is known by its first
    const std::optional<PartName> part = PartOf(path);
    return part && part->number > 1;
  });
  if (found.empty()) return first;
  if (found.size() == 1) return found.front();
  return Fail(Code::kInvalidArgument, "{}: has {} models in GGUF files; give one of them: {}, {}{}",
              folder.string(), found.size(), found[0].filename().string(),
              found[1].filename().string(), found.size() > 2 ? ", ..." : "");
}

Result<Source> Locate(const fs::path& given, Need need) {
  std::error_code error;
  fs::path path = fs::absolute(given, error).lexically_normal();
  if (given.empty()) return Fail(Code::kInvalidArgument, "the model's path is empty");
  if (error) return FailErrno(error.value(), "{}: cannot be made absolute", given.string());
  if (!path.has_filename()) path = path.parent_path();
  KV_ASSIGN(const bool exists, Exists(path));
  if (exists && fs::is_directory(path, error)) {
    KV_ASSIGN(const std::optional<fs::path> gguf, OnlyGguf(path));
    KV_ASSIGN(const std::optional<fs::path> ct2, Ct2FolderIn(path));
    if (!gguf && ct2) return Source{std::move(path), true, ct2};
    return gguf ? Source{*gguf, false} : Source{std::move(path), true};
  }
  if (error) return FailErrno(error.value(), "{}: cannot check the path", path.string());
  if (!exists) {
    return Fail(Code::kNotFound,
                "{}: no such file or folder; --model takes a Hugging Face folder, a GGUF file or a "
                "CTranslate2 folder",
                path.string());
  }
  const std::string extension = path.extension().string();
  if (path.filename() == "model.bin") return Source{path.parent_path(), true, path.parent_path()};
  if (path.filename() == "config.json" && need == Need::kShapes) {
    return Source{path.parent_path(), true};
  }
  if (extension == ".safetensors" || extension == ".json") {
    return Fail(Code::kInvalidArgument, "{}: is one file of a model; give its folder",
                path.string());
  }
  return Source{std::move(path), false};
}

}  // namespace

Status CheckNoLfsPointer(std::span<const std::byte> bytes, const std::string& file) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with("version https://git-lfs.github.com/spec/")) return {};
  return Fail(
      Code::kCorruption,
      "{}: this is a git-LFS pointer, not the file itself; run 'git lfs pull' in its folder", file);
}

Result<ImportedModel> ImportModel(const fs::path& path, Need need) {
  KV_ASSIGN(const Source source, Locate(path, need));
  const auto import = [&] {
    if (source.ct2_folder) return ImportCt2Folder(*source.ct2_folder, source.path);
    return source.is_folder ? ImportHfFolder(source.path, need) : ImportGgufFile(source.path, need);
  };
  KV_ASSIGN(ImportedModel model, import());
  KV_TRY(CheckWhileLoading(model.mapped_files));
  return model;
}

}  // namespace kvasir
