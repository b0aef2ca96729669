// Damages a model image: flips bits, cuts the end, inserts parts of other images. An image that
// opens must have the payload written with this key and secret; all others must be refused and
// removed, and can then be written again.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "byte_source.h"
#include "fuzz_target.h"
#include "model/model_image.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

// Nothing, a byte, about a page, and two chunks of 4 MiB of which one is five bytes.
constexpr std::array<size_t, 5> kPayloadBytes = {0, 1, 4096, 5000, (4 << 20) + 5};
constexpr int kMaxDamages = 16;
constexpr size_t kHeaderBytes = 232, kTagBytes = 16, kPageBytes = 4096;

// Good images of one size. The first two may be opened; they differ in payload and salt.
enum Kind { kOurs, kOurOther, kOtherKey, kOtherSecret, kKinds };

struct Image {
  std::string file;
  std::vector<std::byte> payload;
};
using Family = std::array<Image, kKinds>;

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class Workshop {
 public:
  Workshop() {
    std::string name = (fs::temp_directory_path() / "kvasir_image_fuzz.XXXXXX").string();
    KV_CHECK(mkdtemp(name.data()) != nullptr);
    root_ = name;
    for (size_t i = 0; i < kPayloadBytes.size(); ++i) families_[i] = MakeFamily(kPayloadBytes[i]);
  }
  ~Workshop() {
    std::error_code error;
    fs::remove_all(root_, error);
  }

  const Family& family(size_t size_index) const { return families_[size_index]; }

  // Writes `file` as the image of kOurs' key, opens it and checks the outcome.
  void Open(const std::string& file, size_t size_index, bool keep_none) {
    std::ofstream(path_, std::ios::binary) << file;
    CheckTitles();
    const Family& family = families_[size_index];
    const Image* expected = nullptr;
    for (const Kind kind : {kOurs, kOurOther}) {
      if (family[kind].file == file) expected = &family[kind];
    }
    const uint64_t cap_bytes = keep_none ? 0 : kCapBytes;
    const auto opened =
        ModelImages(folder(), cap_bytes, kSecret).Open(kKey, kPayloadBytes[size_index], pool_);
    if (expected != nullptr) {
      KV_CHECK(opened && opened->has_value());
      KV_CHECK(std::ranges::equal((*opened)->payload, expected->payload));
      KV_CHECK(fs::exists(path_) == !keep_none);
    } else {
      KV_CHECK(!opened && opened.error().code == Code::kCorruption);
      KV_CHECK(!opened.error().message.empty() && !fs::exists(path_));
    }
  }

  // Makes a refused image anew.
  void WriteAgain(size_t size_index) {
    const Image& image = families_[size_index][kOurs];
    const ModelImages images(folder(), kCapBytes, kSecret);
    KV_CHECK(images.Write(kKey, {"m", "i8"}, image.payload, pool_));
    const auto opened = images.Open(kKey, image.payload.size(), pool_);
    KV_CHECK(opened && opened->has_value());
    KV_CHECK(std::ranges::equal((*opened)->payload, image.payload));
  }

 private:
  static constexpr uint64_t kCapBytes = uint64_t{1} << 40;
  static constexpr Secret kSecret = {1, 2, 3}, kWrongSecret = {3, 2, 1};
  static constexpr Digest kKey = {7}, kWrongKey = {8};

  fs::path folder() const { return root_ / "images"; }

  Family MakeFamily(size_t payload_bytes) {
    Family family;
    for (int kind = 0; kind < kKinds; ++kind) {
      Random random(kind == kOurOther ? 2 : 1);
      std::vector<std::byte>& payload = family[kind].payload;
      payload.resize(payload_bytes);
      for (std::byte& b : payload) b = std::byte(random.Bits());
      const Secret& secret = kind == kOtherSecret ? kWrongSecret : kSecret;
      const Digest& key = kind == kOtherKey ? kWrongKey : kKey;
      KV_CHECK(ModelImages(folder(), kCapBytes, secret)
                   .Write(key, {"name\x1b of a model", "q8_0"}, payload, pool_));
      const auto images = ModelImages::List(folder());
      KV_CHECK(images.size() == 1);
      family[kind].file = ReadFile(images[0].path);
      if (kind == kOurs) path_ = images[0].path;
      fs::remove(images[0].path);
    }
    return family;
  }

  // Checks that titles are printable, even if the file is damaged.
  void CheckTitles() const {
    const auto printable = [](const std::string& text) {
      return std::ranges::none_of(
          text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
    };
    const auto images = ModelImages::List(folder());
    KV_CHECK(images.size() == 1 && images[0].path == path_);
    KV_CHECK(printable(images[0].title.model) && images[0].title.model.size() <= 128);
    KV_CHECK(printable(images[0].title.weights) && images[0].title.weights.size() <= 16);
  }

  fs::path root_, path_;
  ThreadPool pool_{1, nullptr};
  std::array<Family, kPayloadBytes.size()> families_;
};

// Chooses a place in the file: mostly in the header and the tags, although the payload has most
// bytes.
size_t SomePlace(ByteSource& bytes, const std::string& file) {
  if (file.empty()) return 0;
  switch (bytes.Below(4)) {
    case 0:
      return std::min<size_t>(bytes.Byte(), file.size() - 1);
    case 1:
      return std::min<size_t>(kHeaderBytes + bytes.Below(64), file.size() - 1);
    case 2:
      return file.size() - 1 - std::min<size_t>(bytes.Byte(), file.size() - 1);
    default:
      return bytes.U32() % file.size();
  }
}

// Puts a part of another image at its own place.
void TakePart(ByteSource& bytes, const std::string& from, std::string& file) {
  const size_t tags_end = std::min(kPageBytes, from.size());
  const std::pair<size_t, size_t> parts[] = {{0, kHeaderBytes},
                                             {kHeaderBytes, kHeaderBytes + kTagBytes},
                                             {0, kHeaderBytes + kTagBytes},
                                             {0, tags_end},
                                             {kHeaderBytes + kTagBytes, tags_end},
                                             {16, 48},  // key
                                             {48, 72},  // salt
                                             {72, 80},  // payload_bytes
                                             {tags_end, from.size()}};
  const auto [begin, end] = parts[bytes.Below(std::size(parts))];
  if (file.size() < end) file.resize(end);
  file.replace(begin, end - begin, from, begin, end - begin);
}

void Damage(ByteSource& bytes, const Workshop& workshop, std::string& file) {
  const size_t at = SomePlace(bytes, file);
  switch (bytes.Below(8)) {
    case 0:
    case 1:
      if (!file.empty()) file[at] = static_cast<char>(file[at] ^ 1 << bytes.Below(8));
      return;
    case 2:
      return file.resize(at);
    case 3: {
      const size_t count = bytes.Below(64);
      file.append(count, static_cast<char>(bytes.Byte()));
      return;
    }
    case 4: {
      const size_t other = bytes.Below(kPayloadBytes.size());
      return TakePart(bytes, workshop.family(other)[bytes.Below(kKinds)].file, file);
    }
    case 5: {  // a number of the header
      constexpr size_t kFields[] = {8, 12, 72, 76, 80, 84};
      const uint32_t value = bytes.Below(2) == 0 ? bytes.Byte() : bytes.U32();
      const size_t field = kFields[bytes.Below(std::size(kFields))];
      if (file.size() >= field + 4) std::memcpy(&file[field], &value, 4);
      return;
    }
    case 6: {  // two pieces change places
      const size_t to = SomePlace(bytes, file);
      const size_t length = std::min<size_t>({bytes.Byte(), file.size() - at, file.size() - to});
      if (std::max(at, to) - std::min(at, to) < length) return;
      std::swap_ranges(file.begin() + static_cast<ptrdiff_t>(at),
                       file.begin() + static_cast<ptrdiff_t>(at + length),
                       file.begin() + static_cast<ptrdiff_t>(to));
      return;
    }
    default:
      if (!file.empty()) file.erase(at, bytes.Byte());
  }
}

}  // namespace
}  // namespace kvasir

// Disables waiting: opening a file that has just changed waits for the next tick of the file
// system's clock (base/mapped_file.cc), which would take nine tenths of the time here.
extern "C" int nanosleep(const timespec*, timespec*) { return 0; }

KV_FUZZ_TARGET(model_image)(const uint8_t* data, size_t size) {
  using namespace kvasir;
  static Workshop workshop;
  ByteSource bytes(data, size);
  // Large images take a hundred times as long, so they are one choice in eight.
  const size_t size_index = std::min<size_t>(bytes.Below(8) * 5 / 8, kPayloadBytes.size() - 1);
  const bool keep_none = bytes.Below(4) == 0;
  const uint32_t kind = bytes.Below(kKinds + 1);
  std::string file;
  if (kind == kKinds) {  // no image at all, or one that the input makes up
    const auto rest = bytes.Rest();
    file.assign(rest.begin(), rest.end());
  } else {
    file = workshop.family(size_index)[kind].file;
    for (int i = 0; i < kMaxDamages && !bytes.empty(); ++i) Damage(bytes, workshop, file);
  }
  workshop.Open(file, size_index, keep_none);
  workshop.WriteAgain(size_index);
  return 0;
}
