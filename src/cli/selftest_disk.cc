// The checks of selftest that have a disk, in a temporary folder.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>

#include "base/result.h"
#include "cli/selftest_run.h"

namespace kvasir::cli {
namespace {

namespace fs = std::filesystem;

// A folder that goes with this object.
class TemporaryFolder {
 public:
  static Result<TemporaryFolder> Make() {
    const char* tmp = std::getenv("TMPDIR");
    std::string path =
        std::string(tmp != nullptr && *tmp != '\0' ? tmp : "/tmp") + "/kvasir.XXXXXX";
    if (mkdtemp(path.data()) == nullptr) {
      return Fail(Code::kIoError, "cannot make a folder like {}", path);
    }
    TemporaryFolder folder;
    folder.path_ = path;
    return folder;
  }
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::move(other.path_)) {
    other.path_.clear();
  }
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
  }
  const fs::path& path() const { return path_; }

 private:
  TemporaryFolder() = default;
  fs::path path_;
};

// The lab's options with a disk in the folder. Where the user's secret does not last, with another
// one beside the disk, which no model image is kept under.
Result<EngineOptions> OnDisk(const Lab& lab, const TemporaryFolder& folder) {
  EngineOptions options = lab.options();
  options.disk = DiskOptions{.folder = (folder.path() / "kv").string(), .cap_bytes = {}};
  KV_ASSIGN(const auto engine, lab.Load(options));
  if (engine->DiskStats()) return options;
  options.state_dir = folder.path() / "state";
  options.image_cap_bytes = 0;
  return options;
}

Status Flush(Engine& engine) {
  const auto told = std::make_shared<std::promise<Result<TierFlushed>>>();
  engine.Flush([told](Result<TierFlushed> flushed) { told->set_value(std::move(flushed)); });
  KV_TRY(told->get_future().get());
  return {};
}

// An engine computes the prompt for each tenant, stores it, and ends.
Status Store(const Lab& lab, const EngineOptions& options,
             const std::vector<std::string>& tenants) {
  KV_ASSIGN(const auto engine, lab.Load(options));
  for (const std::string& tenant : tenants) {
    GenerateRequest request = lab.Ask(lab.prompt());
    request.tenant = tenant;
    KV_TRY(RunAlone(*engine, std::move(request)));
  }
  return Flush(*engine);
}

uint32_t WholeBlocks(const Lab& lab) {
  const auto most = static_cast<uint32_t>(lab.prompt().size()) - 1;
  return most / lab.options().block_tokens * lab.options().block_tokens;
}

void ExpectFromDisk(Check& check, const Lab& lab, const Trace& trace, const std::string& what) {
  check.Expect(trace.receipt.reused_disk == WholeBlocks(lab),
               fmt::format("{}: {} tokens from the disk, not {}", what, trace.receipt.reused_disk,
                           WholeBlocks(lab)));
}

// Each segment file under the folder.
std::vector<fs::path> Segments(const TemporaryFolder& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path() / "kv")) {
    if (entry.path().extension() == ".kvs") paths.push_back(entry.path());
  }
  return paths;
}

// Changes one byte in each page that has any.
Status Damage(const fs::path& path) {
  constexpr std::streamoff kPageBytes = 4096;
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto bytes = static_cast<std::streamoff>(fs::file_size(path));
  std::vector<char> page(kPageBytes);
  for (std::streamoff at = kPageBytes; at + kPageBytes <= bytes; at += kPageBytes) {
    file.seekg(at);
    if (!file.read(page.data(), kPageBytes)) break;
    const auto used = std::ranges::find_if(page, [](char c) { return c != 0; });
    if (used == page.end()) continue;
    file.seekp(at + 1);
    const char changed = static_cast<char>(page[1] ^ 0x10);
    file.write(&changed, 1);
  }
  if (file) return {};
  return Fail(Code::kIoError, "cannot change {}", path.string());
}

}  // namespace

// A second engine takes the prompt from the disk of the first one.
Status Restarted(Lab& lab, Check& check) {
  KV_ASSIGN(const TemporaryFolder folder, TemporaryFolder::Make());
  KV_ASSIGN(const EngineOptions options, OnDisk(lab, folder));
  KV_TRY(Store(lab, options, {"default"}));
  KV_ASSIGN(const auto engine, lab.Load(options));
  KV_ASSIGN(const Trace trace, RunAlone(*engine, lab.Ask(lab.prompt())));
  check.Compare(lab.reference(), trace, "restarted");
  ExpectFromDisk(check, lab, trace, "restarted");
  KV_ASSIGN(const auto empty, lab.Load(lab.options()));
  KV_ASSIGN(const Trace cold, RunAlone(*empty, lab.Ask(lab.prompt())));
  check.Compare(lab.reference(), cold, "restarted without a disk");
  check.Expect(cold.receipt.cached_tokens() == 0, "without a disk: the cache is not empty");
  return {};
}

// Several ask for one prompt while it is loaded, and another prompt is computed beside them.
Status Loading(Lab& lab, Check& check) {
  KV_ASSIGN(const TemporaryFolder folder, TemporaryFolder::Make());
  KV_ASSIGN(const EngineOptions options, OnDisk(lab, folder));
  KV_TRY(Store(lab, options, {"default"}));
  KV_ASSIGN(const auto engine, lab.Load(options));
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 3; ++i) requests.push_back(lab.Ask(lab.prompt()));
  requests[1].chunk_tokens = 3;
  requests.push_back(lab.Ask(lab.RandomTokens(lab.prompt().size())));
  KV_ASSIGN(const std::vector<Trace> traces, RunTogether(*engine, std::move(requests)));
  uint32_t from_disk = 0;
  for (size_t i = 0; i < 3; ++i) {
    check.Compare(lab.reference(), traces[i], fmt::format("loading, request {}", i));
    from_disk += traces[i].receipt.reused_disk;
  }
  check.Expect(from_disk >= WholeBlocks(lab) || WholeBlocks(lab) == 0,
               fmt::format("loading: {} tokens from the disk", from_disk));
  return {};
}

// What the disk has is damaged in every page: nothing of it is served.
Status Damaged(Lab& lab, Check& check) {
  KV_ASSIGN(const TemporaryFolder folder, TemporaryFolder::Make());
  KV_ASSIGN(const EngineOptions options, OnDisk(lab, folder));
  KV_TRY(Store(lab, options, {"default"}));
  KV_ASSIGN(const auto engine, lab.Load(options));
  for (const fs::path& path : Segments(folder)) KV_TRY(Damage(path));
  KV_ASSIGN(const Trace trace, RunAlone(*engine, lab.Ask(lab.prompt())));
  check.Compare(lab.reference(), trace, "damaged");
  check.Expect(trace.receipt.reused_disk == 0,
               fmt::format("damaged: {} tokens from the disk", trace.receipt.reused_disk));
  return {};
}

// What a tenant erased is not found after a restart; what another one has is.
Status Erased(Lab& lab, Check& check) {
  KV_ASSIGN(const TemporaryFolder folder, TemporaryFolder::Make());
  KV_ASSIGN(const EngineOptions options, OnDisk(lab, folder));
  KV_TRY(Store(lab, options, {"default", "another"}));
  {
    KV_ASSIGN(const auto engine, lab.Load(options));
    engine->Erase("default");
  }
  KV_ASSIGN(const auto engine, lab.Load(options));
  for (const char* tenant : {"default", "another"}) {
    GenerateRequest request = lab.Ask(lab.prompt());
    request.tenant = tenant;
    KV_ASSIGN(const Trace trace, RunAlone(*engine, std::move(request)));
    check.Compare(lab.reference(), trace, fmt::format("erased, tenant {}", tenant));
    if (tenant == std::string_view("another")) {
      ExpectFromDisk(check, lab, trace, "another tenant's erasure");
    } else {
      check.Expect(trace.receipt.cached_tokens() == 0, "erased: the disk still has it");
    }
  }
  return {};
}

}  // namespace kvasir::cli
