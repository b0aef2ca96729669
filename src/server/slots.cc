#include "server/slots.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "api/session_prompt.h"
#include "base/descriptor.h"
#include "base/file_name.h"
#include "base/result.h"

namespace kvasir {
namespace {

constexpr std::string_view kSlotMagic = "kvslot1\n", kAnyMagic = "kvslot";

void PutU32(uint32_t value, std::string* out) {
  for (int shift = 0; shift < 32; shift += 8) out->push_back(static_cast<char>(value >> shift));
}

uint32_t U32At(std::string_view bytes) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

std::string_view BytesOf(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace

std::shared_ptr<const SlotPath> Slots::Get(uint32_t slot, std::string_view tenant) const {
  const MutexLock lock(mutex_);
  const auto& path = paths_[slot].path;
  return path && path->tenant == tenant ? path : nullptr;
}

void Slots::Set(uint32_t slot, SlotPath path, uint64_t epoch) {
  path.ids.shrink_to_fit();
  auto set = std::make_shared<const SlotPath>(std::move(path));
  const MutexLock lock(mutex_);
  if (paths_[slot].forgotten <= epoch) paths_[slot].path = std::move(set);
}

void Slots::Forget(uint32_t slot) {
  const MutexLock lock(mutex_);
  paths_[slot] = {nullptr, ++epoch_};
}

void Slots::ForgetAll() {
  const MutexLock lock(mutex_);
  ++epoch_;
  for (Entry& entry : paths_) entry = {nullptr, epoch_};
}

uint64_t Slots::epoch() const {
  const MutexLock lock(mutex_);
  return epoch_;
}

SlotKeeper::SlotKeeper(Slots& slots, uint32_t slot, const GenerateRequest& request)
    : slots_(slots),
      slot_(slot),
      epoch_(slots.epoch()),
      prompt_tokens_(request.prompt.size()),
      path_{request.tenant, SpaceOf(request), request.prompt} {}

void SlotKeeper::Take(const Event& event) {
  if (event.choice != 0) return;
  for (const GeneratedToken& token : event.tokens) path_.ids.push_back(token.id);
}

void SlotKeeper::Keep() {
  if (std::exchange(kept_, true)) return;
  if (path_.ids.size() > prompt_tokens_) path_.ids.pop_back();  // the last token has no KV
  try {
    slots_.Set(slot_, std::move(path_), epoch_);
  } catch (const std::bad_alloc&) {  // then the slot has what it had
  }
}

Digest SlotIdentity(std::string_view model_content, std::string_view tenant) {
  return Sha256().Update(model_content).Update("\n").Update(tenant).Finish();
}

std::string EncodeSlot(const SlotPath& path, const Digest& identity) {
  const std::string salt = path.space.salt.value_or("");
  std::string out;
  out.reserve(kSlotMagic.size() + 2 * identity.size() + salt.size() + 8 + path.ids.size() * 4);
  out += kSlotMagic;
  out += BytesOf(identity);
  PutU32(static_cast<uint32_t>(salt.size()), &out);
  out += salt;
  PutU32(static_cast<uint32_t>(path.ids.size()), &out);
  for (const TokenId id : path.ids) PutU32(static_cast<uint32_t>(id), &out);
  return out += BytesOf(Sha256Of(out));
}

Result<SlotPath> DecodeSlot(std::string_view bytes, const Digest& identity, std::string tenant,
                            std::string_view name) {
  const auto wrong = [&](Code code, std::string_view what) {
    return FailField(code, "filename", "{} {}", Printable(name), what);
  };
  if (!bytes.starts_with(kAnyMagic)) {
    return wrong(Code::kInvalidArgument,
                 "is not a file that this server saved (files of llama-server hold KV of another "
                 "form: send the prompt instead)");
  }
  constexpr size_t kDigestBytes = sizeof(Digest), kHead = kSlotMagic.size() + kDigestBytes;
  if (!bytes.starts_with(kSlotMagic)) {
    return wrong(Code::kInvalidArgument, "is of another version of kvasir; save it again");
  }
  const std::string_view body =
      bytes.substr(0, bytes.size() - std::min(bytes.size(), kDigestBytes));
  if (body.size() < kHead + 8 || bytes.substr(body.size()) != BytesOf(Sha256Of(body))) {
    return wrong(Code::kCorruption, "is damaged; save it again");
  }
  if (body.substr(kSlotMagic.size(), kDigestBytes) != BytesOf(identity)) {
    return wrong(Code::kInvalidArgument, "was saved with another model or another key");
  }
  SlotPath path{.tenant = std::move(tenant), .space = {}, .ids = {}};
  std::string_view rest = body.substr(kHead);
  const size_t salt_bytes = U32At(rest);
  rest.remove_prefix(4);
  if (rest.size() < 4 || salt_bytes > rest.size() - 4) {
    return wrong(Code::kCorruption, "is damaged; save it again");
  }
  if (salt_bytes > 0) path.space.salt = rest.substr(0, salt_bytes);
  rest.remove_prefix(salt_bytes);
  const uint64_t count = U32At(rest);
  rest.remove_prefix(4);
  if (rest.size() != count * 4) return wrong(Code::kCorruption, "is damaged; save it again");
  path.ids.reserve(count);
  for (; !rest.empty(); rest.remove_prefix(4)) {
    path.ids.push_back(static_cast<TokenId>(U32At(rest)));
  }
  return path;
}

Status CheckSlotFile(std::string_view name) {
  if (IsSafeFile(name) && !name.starts_with('.') && name.find('/') == name.npos) return {};
  return FailField(Code::kInvalidArgument, "filename",
                   "'{}' is not the name of a file in the folder of --slot-save-path: give a name "
                   "without slashes that does not begin with a dot",
                   Printable(name.substr(0, 64)));
}

Result<std::string> ReadSlotFile(const std::filesystem::path& folder, const std::string& name,
                                 uint64_t max_bytes) {
  const std::string path = folder / name;
  // O_NONBLOCK: a FIFO must not hold the thread.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  const int error = errno;
  if (!file && error == ENOENT) {
    return FailField(Code::kNotFound, "filename", "the folder of --slot-save-path has no file '{}'",
                     Printable(name));
  }
  struct stat about = {};
  if (!file || fstat(file.fd(), &about) != 0) {
    return FailField(Code::kInvalidArgument, "filename", "{} cannot be read: {}", Printable(name),
                     error == ELOOP ? "it is a link" : std::strerror(error));
  }
  if (!S_ISREG(about.st_mode) || static_cast<uint64_t>(about.st_size) > max_bytes) {
    return FailField(Code::kInvalidArgument, "filename",
                     "{} is not a regular file of at most {} bytes", Printable(name), max_bytes);
  }
  std::string bytes(static_cast<size_t>(about.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = read(file.fd(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  bytes.resize(done);  // a file that was cut meanwhile is damaged
  return bytes;
}

}  // namespace kvasir
