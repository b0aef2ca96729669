// WeightsDigest: the content of a model's weights, read once and remembered.
//
// The remembered file, text: the key (a version line, then a line for each weight file), then
//   digest <64 hex digits> check <HMAC-SHA-256 of all before it, 64 hex digits>
#include "base/atomic_file.h"
#include "base/clock.h"
#include "base/hex.h"
#include "base/result.h"
#include "import/file_watch.h"
#include "import/importer.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kChunkBytes = uint64_t{8} << 20;
constexpr uint64_t kMaxRememberedBytes = uint64_t{16} << 20;
// A file that changed so lately could change again without a new time stamp: the coarsest file
// system that matters counts in 2 seconds.
constexpr int64_t kSettledNs = 2'000'000'000;

// Returns everything that must be the same for a remembered digest to hold. Paths are
// length-prefixed: they may hold any byte.
std::string KeyOf(const ImportedModel& model) {
  std::string key = "kvasir weights digest 2\n";
  for (const auto& file : model.mapped_files) {
    const FileStamp& s = file->stamp();
    const std::string path = file->path().string();
    key += fmt::format("{} {} {} {} {} {} {}\n", s.device, s.inode, s.size_bytes, s.mtime_ns,
                       s.ctime_ns, path.size(), path);
  }
  return key;
}

fs::path RememberedPath(const ImportedModel& model, const fs::path& cache_dir) {
  Sha256 paths;
  for (const auto& file : model.mapped_files) {
    paths.UpdateU64(file->path().string().size()).Update(file->path().string());
  }
  return cache_dir / ("weights-" + ToHex(paths.Finish()).substr(0, 32) + ".digest");
}

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string Render(const std::string& key, const Digest& digest, const Secret& secret) {
  const std::string body = key + "digest " + ToHex(digest);
  const HmacKey purpose(HmacKey(secret).Of(BytesOf("kvasir weights digest")));
  return body + " check " + ToHex(purpose.Of(BytesOf(body))) + "\n";
}

std::optional<Digest> Recall(const fs::path& path, const std::string& key, const Secret& secret) {
  const auto text = ReadTextFile(path, kMaxRememberedBytes);
  const size_t at = key.size() + std::string_view("digest ").size();
  if (!text || text->size() < at + 64 || !text->starts_with(key)) return std::nullopt;
  const auto digest =
      FromHex<sizeof(Digest)>(std::string_view(*text).substr(at, 64), HexCase::kLower);
  if (!digest || *text != Render(key, *digest, secret)) return std::nullopt;
  return digest;
}

// Writes a remembered digest. Failing only costs time, as does a file that a power loss tore: its
// check tells.
void Remember(const fs::path& path, const std::string& text) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  (void)WriteAtomicFile(path, text, {.durability = Durability::kRecomputable});
}

// Returns whether the files are still what was mapped and have been so for a while.
bool Settled(const ImportedModel& model) {
  const int64_t now_ns = UnixNs();
  for (const auto& file : model.mapped_files) {
    const auto stamp = StampOf(file->path());
    if (!stamp || *stamp != file->stamp() || now_ns - stamp->ctime_ns < kSettledNs) return false;
  }
  return true;
}

}  // namespace

Result<Digest> WeightsDigest(const ImportedModel& model, const std::optional<DigestMemory>& memory,
                             const std::function<void(uint64_t, uint64_t)>& progress) {
  if (model.mapped_files.empty()) {  // a synthetic model: its path says all that decides its bytes
    return Sha256().Update("kvasir synthetic weights 1\n").Update(model.path.string()).Finish();
  }
  const std::string key = KeyOf(model);
  const fs::path remembered = memory ? RememberedPath(model, memory->cache_dir) : fs::path();
  if (memory) {
    if (const auto digest = Recall(remembered, key, memory->secret)) return *digest;
  }
  uint64_t done_bytes = 0, total_bytes = 0;
  for (const auto& file : model.mapped_files) total_bytes += file->bytes().size();
  Sha256 sha;
  sha.Update("kvasir weights 1\n").UpdateU64(model.mapped_files.size());
  for (const auto& file : model.mapped_files) {
    sha.UpdateU64(file->bytes().size());
    for (auto rest = file->bytes(); !rest.empty();) {
      const auto chunk = rest.first(std::min<size_t>(rest.size(), kChunkBytes));
      sha.Update(chunk);
      file->Drop(chunk);
      rest = rest.subspan(chunk.size());
      done_bytes += chunk.size();
      if (progress) progress(done_bytes, total_bytes);
    }
  }
  KV_TRY(CheckWhileLoading(model.mapped_files));
  const Digest digest = sha.Finish();
  if (memory && Settled(model)) Remember(remembered, Render(key, digest, memory->secret));
  return digest;
}

}  // namespace kvasir
