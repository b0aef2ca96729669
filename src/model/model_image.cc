// The file, little endian (also in docs/weights.md):
//   image   := header  tag header_tag  tag[chunks]  zeros to a multiple of 4096  payload
//   header  := "KVIMAGE\n"  u32 version  u32 layout  key[32]  salt[24]  u64 payload_bytes
//              u64 chunk_bytes  model[128]  weights[16]  (names are padded with zeros)
//   tag     := 16 bytes, GMAC under HMAC(secret, "kvasir model image", salt):
//              number 0 over header and the chunks' tags, number 1 + i over chunk i of the payload
// version is that of this grammar, layout that of the packed panels and the order of the arena.
#include "model/model_image.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/atomic_file.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/hex.h"
#include "base/random_bytes.h"
#include "base/system_error.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kVersion = 1;
constexpr uint32_t kLayout = 2;  // panels of weight_format.h, arena of packed_weights.cc
constexpr uint64_t kChunkBytes = uint64_t{4} << 20;
constexpr uint64_t kPageBytes = 4096;
constexpr std::string_view kMagic = "KVIMAGE\n", kPrefix = "image-", kSuffix = ".kvw";
constexpr std::string_view kPurpose = "kvasir model image";
constexpr int64_t kYoungDraftNs = 2'000'000'000;  // its writer may not have locked it yet

struct Header {
  char magic[8];
  uint32_t version, layout;
  Digest key;
  std::array<uint8_t, 24> salt;
  uint64_t payload_bytes, chunk_bytes;
  char model[128], weights[16];
};
static_assert(sizeof(Header) == 232 && std::is_trivially_copyable_v<Header>);

// Where the parts of an image lie.
struct Places {
  explicit Places(uint64_t payload_bytes)
      : chunks(CeilDiv(payload_bytes, kChunkBytes)),
        tags(sizeof(Header) + sizeof(GmacTag)),
        padding(tags + chunks * sizeof(GmacTag)),
        payload(RoundUp(padding, kPageBytes)),
        end(payload + payload_bytes) {}
  uint64_t chunks, tags, padding, payload, end;
};

template <size_t kSize>
void PutName(const std::string& name, char (&out)[kSize]) {
  std::memset(out, 0, kSize);
  std::memcpy(out, name.data(), std::min(name.size(), kSize - 1));
}
// Replaces control characters, because anybody may have written the name.
template <size_t kSize>
std::string GetName(const char (&name)[kSize]) {
  std::string text(name, strnlen(name, kSize));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

std::span<const std::byte> ChunkOf(std::span<const std::byte> payload, uint64_t index) {
  const uint64_t at = index * kChunkBytes;
  return payload.subspan(at, std::min<uint64_t>(kChunkBytes, payload.size() - at));
}

// Returns tag 0: over the header and the tags of the chunks.
GmacTag HeaderTag(const GmacKey& key, const Header& header, std::span<const GmacTag> tags) {
  std::vector<std::byte> bytes(sizeof(Header) + tags.size_bytes());
  std::memcpy(bytes.data(), &header, sizeof(Header));
  if (!tags.empty()) std::memcpy(bytes.data() + sizeof(Header), tags.data(), tags.size_bytes());
  return key.Of(0, bytes);
}

// Returns whether every byte of a mapped image is what was written under this secret.
bool Verify(std::span<const std::byte> file, const Header& header, const Places& places,
            const Secret& secret, ThreadPool& pool) {
  const auto zeros = file.subspan(places.padding, places.payload - places.padding);
  if (!std::ranges::all_of(zeros, [](std::byte b) { return b == std::byte{0}; })) return false;
  const GmacKey key(secret, kPurpose, header.salt);
  GmacTag header_tag;
  std::memcpy(&header_tag, file.data() + sizeof(Header), sizeof(GmacTag));
  std::vector<GmacTag> tags(places.chunks);
  if (!tags.empty()) std::memcpy(tags.data(), file.data() + places.tags, tags.size() * 16);
  if (!SameTag(header_tag, HeaderTag(key, header, tags))) return false;
  const auto payload = file.subspan(places.payload);
  std::atomic<bool> same = true;
  pool.Run(static_cast<uint32_t>(places.chunks), [&](uint32_t i, uint32_t) {
    const auto chunk = ChunkOf(payload, i);
    // One call for all pages of a chunk: half the time of faulting them in one by one.
    madvise(const_cast<std::byte*>(chunk.data()), chunk.size(), MADV_POPULATE_READ);
    if (!SameTag(tags[i], key.Of(1 + i, chunk))) same.store(false, std::memory_order_relaxed);
  });
  return same;
}

// Writes up to the next multiple of kChunkBytes of the file at a time. A file system that caches
// files in large pieces takes pieces as large as a write fills, and the mapping then has huge
// pages.
Status WriteByChunks(AtomicFile& file, uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t piece = std::min<size_t>(bytes.size(), kChunkBytes - offset % kChunkBytes);
    KV_TRY(file.WriteAt(bytes.first(piece), offset));
    offset += piece;
    bytes = bytes.subspan(piece);
  }
  return {};
}

// `front`: the header and the tags, up to the payload. If a power loss tears the file, its tags
// show it and the image is made again.
Status WriteFile(const fs::path& path, std::span<const std::byte> front,
                 std::span<const std::byte> payload) {
  KV_ASSIGN(const std::unique_ptr<AtomicFile> file,
            AtomicFile::Create(path, {.durability = Durability::kRecomputable}));
  KV_TRY(file->Resize(front.size() + payload.size()));
  KV_TRY(WriteByChunks(*file, 0, front));
  KV_TRY(WriteByChunks(*file, front.size(), payload));
  return file->Publish();
}

int64_t NanosecondsOf(const timespec& time) {
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

// Returns the folder of marks. A mark, an empty file with the image's name, has the time of the
// image's last use. The image's own times must not change: a process that has it mapped would take
// it for changed (import/file_watch.h).
fs::path MarkFolder(const fs::path& images) {
  fs::path folder = images;
  return folder += "-used";
}
fs::path MarkOf(const fs::path& image) {
  return MarkFolder(image.parent_path()) / image.filename();
}

// Marks an image as used. A failure only makes it look older than it is.
void MarkUsed(const fs::path& image) {
  std::error_code error;
  fs::create_directories(MarkFolder(image.parent_path()), error);
  const Descriptor mark(
      open(MarkOf(image).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (mark) futimens(mark.fd(), nullptr);
}

bool RemoveImage(const fs::path& image) {
  std::error_code error;
  fs::remove(MarkOf(image), error);
  return fs::remove(image, error);
}

// Removes the marks of images that somebody else removed.
void RemoveStaleMarks(const fs::path& images) {
  std::error_code error;
  for (const auto& mark : fs::directory_iterator(MarkFolder(images), error)) {
    std::error_code unknown;
    const bool gone = !fs::exists(images / mark.path().filename(), unknown) && !unknown;
    if (gone) fs::remove(mark.path(), unknown);
  }
}

// Removes drafts that no process has locked: a crash left them. Returns the bytes of the other
// drafts; each has its full size from the start.
uint64_t RemoveStaleDrafts(const fs::path& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!IsDraftName(name)) continue;
    const Descriptor file(
        open(entry.path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat about;
    if (!file || fstat(file.fd(), &about) != 0 || !S_ISREG(about.st_mode)) continue;
    const bool young = UnixNs() - NanosecondsOf(about.st_mtim) < kYoungDraftNs;
    const bool stale = !young && flock(file.fd(), LOCK_EX | LOCK_NB) == 0;
    if (stale && fs::remove(entry.path(), error)) continue;
    bytes += static_cast<uint64_t>(about.st_size);
  }
  return bytes;
}

}  // namespace

ModelImages::ModelImages(fs::path folder, uint64_t cap_bytes, const Secret& secret)
    : folder_(std::move(folder)), cap_bytes_(cap_bytes), secret_(secret) {}

fs::path ModelImages::PathOf(const Digest& key) const {
  return folder_ / fmt::format("{}{}{}", kPrefix, ToHex(key).substr(0, 32), kSuffix);
}

Result<std::optional<OpenedImage>> ModelImages::Open(const Digest& key, uint64_t payload_bytes,
                                                     ThreadPool& pool) const {
  const fs::path path = PathOf(key);
  auto file = MappedFile::Open(path);
  if (!file && file.error().code == Code::kNotFound) return std::optional<OpenedImage>();
  if (!file) return tl::unexpected(file.error());
  const auto bytes = (*file)->bytes();
  const Places places(payload_bytes);
  Header header{};
  if (bytes.size() >= sizeof(header)) std::memcpy(&header, bytes.data(), sizeof(header));
  const bool is_image = std::string_view(header.magic, sizeof(header.magic)) == kMagic;
  const bool same_version = header.version == kVersion && header.layout == kLayout;
  if (is_image && same_version && bytes.size() == places.end && header.key == key &&
      header.payload_bytes == payload_bytes && header.chunk_bytes == kChunkBytes &&
      Verify(bytes, header, places, secret_, pool)) {
    MarkUsed(path);
    KeepCap(path, bytes.size());
    return OpenedImage{*file, bytes.subspan(places.payload)};
  }
  RemoveImage(path);
  if (is_image && !same_version) {
    return Fail(Code::kCorruption,
                "model image {}: written by another version of Kvasir (file version {}, layout {}; "
                "this one has {} and {})",
                path.string(), header.version, header.layout, kVersion, kLayout);
  }
  if (bytes.size() == places.end) {
    return Fail(Code::kCorruption, "model image {}: damaged or made with another secret",
                path.string());
  }
  return Fail(Code::kCorruption, "model image {}: cut short or damaged: {} bytes; {} expected",
              path.string(), bytes.size(), places.end);
}

Status ModelImages::Write(const Digest& key, const ImageTitle& title,
                          std::span<const std::byte> payload, ThreadPool& pool) const {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) {
    return FailErrno(error.value(), "model image: cannot make the folder {}", folder_.string());
  }
  const Places places(payload.size());
  const fs::path path = PathOf(key);
  KV_TRY(MakeRoom(places.end, path));

  Header header{};
  kMagic.copy(header.magic, sizeof(header.magic));
  header.version = kVersion;
  header.layout = kLayout;
  header.key = key;
  KV_TRY(FillRandom(header.salt));
  header.payload_bytes = payload.size();
  header.chunk_bytes = kChunkBytes;
  PutName(title.model, header.model);
  PutName(title.weights, header.weights);
  const GmacKey gmac(secret_, kPurpose, header.salt);
  std::vector<GmacTag> tags(places.chunks);
  pool.Run(static_cast<uint32_t>(places.chunks),
           [&](uint32_t i, uint32_t) { tags[i] = gmac.Of(1 + i, ChunkOf(payload, i)); });
  std::vector<std::byte> front(places.payload);
  const GmacTag header_tag = HeaderTag(gmac, header, tags);
  std::memcpy(front.data(), &header, sizeof(header));
  std::memcpy(front.data() + sizeof(header), &header_tag, sizeof(header_tag));
  if (!tags.empty()) std::memcpy(front.data() + places.tags, tags.data(), tags.size() * 16);

  const Status written = WriteFile(path, front, payload);
  if (!written) return Fail(written.error().code, "model image: {}", written.error().message);
  KeepCap(path, places.end);  // again: another process may have written at the same time
  return {};
}

Status ModelImages::MakeRoom(uint64_t bytes, const fs::path& except) const {
  if (bytes > cap_bytes_) {
    return Fail(Code::kExhausted,
                "model image: its {} bytes are more than the limit of {} (--image-cap)", bytes,
                cap_bytes_);
  }
  const uint64_t others = RemoveOthers(cap_bytes_ - bytes, except);
  if (others <= cap_bytes_ - bytes) return {};
  return Fail(Code::kExhausted, "model image: cannot remove {} bytes of other images from {}",
              others, folder_.string());
}

void ModelImages::KeepCap(const fs::path& path, uint64_t bytes) const {
  if (bytes > cap_bytes_ && RemoveImage(path)) bytes = 0;  // processes that mapped it keep it
  RemoveOthers(cap_bytes_ - std::min(bytes, cap_bytes_), path);
}

uint64_t ModelImages::RemoveOthers(uint64_t limit, const fs::path& except) const {
  RemoveStaleMarks(folder_);
  uint64_t total_bytes = RemoveStaleDrafts(folder_);
  std::vector<ImageListing> images = List(folder_);
  std::erase_if(images, [&](const ImageListing& image) { return image.path == except; });
  for (const ImageListing& image : images) total_bytes += image.file_bytes;
  for (; !images.empty() && total_bytes > limit; images.pop_back()) {
    if (RemoveImage(images.back().path)) total_bytes -= images.back().file_bytes;
  }
  return total_bytes;
}

std::vector<ImageListing> ModelImages::List(const fs::path& folder) {
  std::vector<ImageListing> images;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    const Descriptor file(open(entry.path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat about;
    if (!file || fstat(file.fd(), &about) != 0 || !S_ISREG(about.st_mode)) continue;
    ImageListing& image = images.emplace_back();
    image.path = entry.path();
    image.file_bytes = static_cast<uint64_t>(about.st_size);
    image.used_ns = NanosecondsOf(about.st_mtim);
    struct stat mark;
    if (stat(MarkOf(entry.path()).c_str(), &mark) == 0) {
      image.used_ns = std::max(image.used_ns, NanosecondsOf(mark.st_mtim));
    }
    Header header;
    if (pread(file.fd(), &header, sizeof(header), 0) == ssize_t{sizeof(header)} &&
        std::string_view(header.magic, sizeof(header.magic)) == kMagic) {
      image.title = {GetName(header.model), GetName(header.weights)};
    }
  }
  std::ranges::sort(images, std::ranges::greater(), &ImageListing::used_ns);
  return images;
}

}  // namespace kvasir
