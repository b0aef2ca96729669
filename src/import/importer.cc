#include "import/importer.h"

#include "base/mapped_file.h"
#include "base/result.h"
#include "base/system_error.h"
#include "import/file_watch.h"
#include "import/gguf_importer.h"
#include "import/hf_importer.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

struct Source {
  fs::path path;  // absolute, without a trailing slash
  bool is_folder;
};

Result<Source> Locate(const fs::path& given) {
  std::error_code error;
  fs::path path = fs::absolute(given, error).lexically_normal();
  if (given.empty()) return Fail(Code::kInvalidArgument, "the model's path is empty");
  if (error) return FailErrno(error.value(), "{}: cannot be made absolute", given.string());
  if (!path.has_filename()) path = path.parent_path();
  KV_ASSIGN(const bool exists, Exists(path));
  if (exists && fs::is_directory(path, error)) return Source{std::move(path), true};
  if (error) return FailErrno(error.value(), "{}: cannot look at it", path.string());
  if (!exists) {
    return Fail(Code::kNotFound,
                "{}: no such file or folder; --model takes a Hugging Face folder or a GGUF file",
                path.string());
  }
  const std::string extension = path.extension().string();
  if (extension == ".safetensors" || extension == ".json") {
    return Fail(Code::kInvalidArgument, "{}: give the folder that it is in", path.string());
  }
  return Source{std::move(path), false};
}

}  // namespace

Result<ImportedModel> ImportModel(const fs::path& path) {
  KV_ASSIGN(const Source source, Locate(path));
  KV_ASSIGN(ImportedModel model,
            source.is_folder ? ImportHfFolder(source.path) : ImportGgufFile(source.path));
  KV_TRY(CheckWhileLoading(model.mapped_files));
  return model;
}

}  // namespace kvasir
