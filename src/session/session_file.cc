#include "kvasir/session_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/clock.h"
#include "base/digest.h"
#include "base/hex.h"
#include "base/log.h"
#include "base/result.h"
#include "base/secret_place.h"
#include "base/wipe.h"
#include "kvasir/engine.h"
#include "session/sealed_rows.h"

namespace kvasir {
namespace {

// A row is a JSON text; its zeroing ends with the caller.
struct WipedText {
  ~WipedText() { Wipe(&text); }
  std::string text;
};

Result<SealedRowsOptions> RowsOptionsOf(const SessionFileOptions& options) {
  KV_ASSIGN(const Secret secret, SecretAt(options.secret));
  return SealedRowsOptions{
      .folder = options.folder, .cap_bytes = options.cap_bytes, .secret = secret};
}

// Hides what a caller may not know of a failed call: where the disk is and what is wrong with it.
template <typename T>
T WithoutDisk(T result) {
  if (result) return result;
  const Error& error = result.error();
  if (error.code != Code::kIoError && error.code != Code::kPermissionDenied) return result;
  Log(LogLevel::kWarning, "sessions on the disk cannot be used", LogField("why", error.message));
  return Fail(Code::kUnavailable,
              "the disk that keeps sessions fails; nothing has changed, try again later");
}

bool HasForeignIds(const SessionState& state, uint32_t vocab_size) {
  const auto is_foreign = [&](TokenId id) { return static_cast<uint32_t>(id) >= vocab_size; };
  return std::ranges::any_of(
             state.messages,
             [&](const auto& one) { return std::ranges::any_of(one->ids, is_foreign); }) ||
         std::ranges::any_of(state.paths, [&](const auto& one) {
           return std::ranges::any_of(one->ids, is_foreign);
         });
}

// Says of a row that a newer version wrote what would read it.
Error OfNewer(std::string_view id, const Error& error) {
  return {Code::kUnsupported,
          fmt::format("the session {} {}: it stays as it is, and that one or a newer one opens it",
                      id, error.message)};
}

// Returns the text of a session without the ids of another tokenizer.
Result<SessionState> TextOf(SessionStore& store, const SessionState& state) {
  SessionState text = state;
  text.paths.clear();
  text.tokens.reset();
  for (auto& message : text.messages) {
    if (message->ids.empty()) continue;
    SessionMessage copy;
    copy.number = message->number;
    copy.version = message->version;
    copy.role = message->role;
    copy.content = message->content;
    copy.SetMore(message->more().WithoutWritten());
    copy.generated = message->generated;
    KV_ASSIGN(message, store.Keep(std::move(copy)));
  }
  return text;
}

}  // namespace

bool IsSessionId(std::string_view id) {
  constexpr std::string_view kPrefix = "sess_";
  return id.starts_with(kPrefix) && id.size() == kPrefix.size() + 32 &&
         FromHex<16>(id.substr(kPrefix.size()), HexCase::kLower).has_value();
}

SessionFileOptions SessionFileOptionsOf(Engine& engine) {
  const TierStats disk = engine.DiskStats().value();
  SessionFileOptions options{
      .folder = disk.folder,
      .ttl_hours = engine.options().disk->ttl_hours,
      .secret = {.state_dir = engine.options().state_dir, .file = engine.options().secret_file},
      .identity = {engine.card().content, engine.plan().kv_format},
      .vocab_size = engine.card().vocab_size,
      .on_need = [&engine](uint64_t bytes) { engine.ReserveDisk(bytes); }};
  if (disk.cap_bytes > 0) options.cap_bytes = disk.cap_bytes;
  return options;
}

SessionOwner SessionOwnerOf(std::string_view tenant) {
  return Sha256().Update("kvasir sessions of ").Update(tenant).Finish();
}

struct SessionFile::Impl {
  SessionFileOptions options;
  RealStorage storage;
  std::unique_ptr<SealedRows> rows;  // ends before the storage
};

SessionFile::SessionFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SessionFile::~SessionFile() = default;

Result<std::unique_ptr<SessionFile>> SessionFile::Open(const SessionFileOptions& options) {
  KV_ASSIGN(const SealedRowsOptions rows, RowsOptionsOf(options));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  KV_ASSIGN(impl->rows, SealedRows::Open(rows, impl->storage));
  if (options.on_need) {
    impl->rows->set_on_need(options.on_need);
    options.on_need(impl->rows->bytes());
  }
  std::unique_ptr<SessionFile> file(new SessionFile(std::move(impl)));
  KV_TRY(file->RemoveOld());
  return file;
}

Result<std::vector<SessionFile::Row>> SessionFile::List() {
  KV_ASSIGN(const std::vector<RowFacts> rows, impl_->rows->List());
  std::vector<Row> list;
  list.reserve(rows.size());
  for (const RowFacts& one : rows) {
    list.push_back({one.id, one.owner, one.number, one.used_s, one.bytes});
  }
  return list;
}

Status SessionFile::Write(const SessionRecord& record, uint64_t number, Scrub scrub,
                          const std::function<bool()>& may) {
  SessionRecord kept = record;
  kept.identity = impl_->options.identity;
  const WipedText json{ToJson(kept)};
  const auto old = scrub == Scrub::kYes ? SealedRows::Old::kScrubbed : SealedRows::Old::kStays;
  return WithoutDisk(impl_->rows->Put(SessionOwnerOf(record.tenant), record.id, number, UnixS(),
                                      std::as_bytes(std::span(json.text)), old, may));
}

Result<SessionRecord> SessionFile::ReadAsItIs(SessionStore& store, const SessionOwner& owner,
                                              std::string_view id) {
  KV_ASSIGN(std::vector<std::byte> bytes, WithoutDisk(impl_->rows->Get(owner, id)));
  auto record = ParseSessionRecord(
      store, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  Wipe(&bytes);
  const bool is_sound = record && record->id == id && SessionOwnerOf(record->tenant) == owner &&
                        (record->identity.content != impl_->options.identity.content ||
                         !HasForeignIds(record->state, impl_->options.vocab_size));
  if (!record && record.error().code == Code::kUnsupported) {
    return tl::unexpected(OfNewer(id, record.error()));
  }
  if (!is_sound && (record || record.error().code == Code::kInvalidArgument)) {
    return Fail(Code::kCorruption, "the session {} in {} makes no sense{}{}", id,
                impl_->options.folder, record ? "" : ": ", record ? "" : record.error().message);
  }
  return record;
}

Result<SessionRecord> SessionFile::Read(SessionStore& store, const SessionOwner& owner,
                                        std::string_view id) {
  KV_ASSIGN(SessionRecord record, ReadAsItIs(store, owner, id));
  const SessionIdentity& now = impl_->options.identity;
  if (record.identity == now) return record;
  if (record.identity.content != now.content) {
    KV_ASSIGN(record.state, TextOf(store, record.state));
  }
  record.state.identity_changed = true;
  record.identity = now;
  return record;
}

Result<SessionHead> SessionFile::ReadHead(const SessionOwner& owner, std::string_view id) {
  KV_ASSIGN(std::vector<std::byte> bytes, WithoutDisk(impl_->rows->Get(owner, id)));
  auto head = ParseSessionHead({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  Wipe(&bytes);
  if (!head && head.error().code == Code::kUnsupported) {
    return tl::unexpected(OfNewer(id, head.error()));
  }
  if (!head || head->id != id || SessionOwnerOf(head->tenant) != owner) {
    return Fail(Code::kCorruption, "the session {} in {} makes no sense{}{}", id,
                impl_->options.folder, head ? "" : ": ", head ? "" : head.error().message);
  }
  if (head->identity.content != impl_->options.identity.content) head->tokens.reset();
  return head;
}

Status SessionFile::Touch(std::string_view id) { return impl_->rows->Touch(id, UnixS()); }

Status SessionFile::Remove(const SessionOwner& owner, std::string_view id) {
  return WithoutDisk(impl_->rows->Remove(owner, id));
}

Status SessionFile::RemoveAll(const SessionOwner& owner) {
  return WithoutDisk(impl_->rows->RemoveOwner(owner));
}

Result<uint64_t> SessionFile::RemoveUnreadable() { return impl_->rows->RemoveUnreadable(); }

void SessionFile::SetWeights(const std::map<SessionOwner, double>& weights) {
  impl_->rows->SetWeights(weights);
}

bool SessionFile::IsThere() { return impl_->rows->IsThere(); }

Result<std::vector<std::string>> SessionFile::RemoveOld() {
  if (impl_->options.ttl_hours == 0) return std::vector<std::string>();
  return impl_->rows->RemoveUnused(UnixS() - static_cast<int64_t>(impl_->options.ttl_hours) * 3600);
}

uint64_t SessionFile::bytes() const { return impl_->rows->bytes(); }
uint64_t SessionFile::max_bytes() const { return impl_->rows->max_bytes(); }

Status EraseUnopened(const SessionFileOptions& options, const SessionOwner& owner) {
  KV_ASSIGN(const SealedRowsOptions rows, RowsOptionsOf(options));
  RealStorage storage;
  return SealedRows::RemoveKeyOf(rows, storage, owner);
}

Result<std::optional<SessionFileCheck>> CheckSessionFile(const SessionFileOptions& options) {
  KV_ASSIGN(const SealedRowsOptions rows, RowsOptionsOf(options));
  RealStorage storage;
  KV_ASSIGN(auto checked, CheckRows(rows, storage));
  std::optional<SessionFileCheck> check;
  if (checked) {
    check = {.sessions = checked->rows - checked->responses,
             .responses = checked->responses,
             .bytes = checked->bytes,
             .unreadable = checked->unreadable,
             .damaged = std::move(checked->damaged),
             .skipped = std::move(checked->skipped)};
  }
  return check;
}

std::optional<SessionFileListing> ListSessionFile(const SessionFileOptions& options) {
  std::error_code error;
  if (!std::filesystem::exists(options.folder + "/sessions.db", error)) return std::nullopt;
  SessionFileListing listing;
  SealedRowsOptions looks{.folder = options.folder, .cap_bytes = options.cap_bytes};
  const auto with_secret = RowsOptionsOf(options);
  if (with_secret) looks = *with_secret;
  looks.only_looks = true;
  SessionFile file(std::make_unique<SessionFile::Impl>());
  file.impl_->options = options;
  auto rows = SealedRows::Open(looks, file.impl_->storage);
  if (rows) file.impl_->rows = std::move(*rows);
  const auto listed = rows ? file.List() : tl::unexpected(rows.error());
  if (!listed) {
    listing.skipped = listed.error().message;
    return listing;
  }
  for (const SessionFile::Row& row : *listed) {
    if (KindOfId(row.id) == SessionKind::kResponse) continue;
    ++listing.sessions;
    listing.bytes += row.bytes;
    SessionStore store(SessionLimits{.memory_bytes = UINT64_MAX});
    const auto record = file.ReadAsItIs(store, row.owner, row.id);
    if (!record) continue;
    const SessionState& state = record->state;
    std::optional<uint32_t> tokens = state.tokens;
    if (!tokens && !state.paths.empty()) {
      tokens = static_cast<uint32_t>(IdsOf(state.paths, state.paths.size() - 1).size());
    }
    listing.readable.push_back({row.id, state.messages.size(), tokens, row.bytes, row.used_s});
  }
  std::ranges::reverse(listing.readable);
  return listing;
}

}  // namespace kvasir
