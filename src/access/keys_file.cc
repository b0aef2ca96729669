#include "access/keys_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "base/ascii.h"
#include "base/descriptor.h"
#include "base/hex.h"
#include "base/result.h"
#include "base/sizes.h"
#include "http/json_body.h"

namespace kvasir {
namespace {

constexpr off_t kMaxFileBytes = 4 << 20;
constexpr size_t kMaxTenantNameBytes = 64;

// Makes the error of a file that does not have the form of a file of keys.
constexpr std::string_view kAdvice =
    "; write {\"tenants\": {NAME: {\"keys\": [...]}}} (docs/tenants.md; 'kvasir key new' makes a "
    "key)";

tl::unexpected<Error> FileFault(const std::string& path, std::string_view what) {
  return FailField(Code::kInvalidArgument, "keys", "{}: {}", path, what);
}

void ReadPriority(JsonFields& fields, TenantEntry* tenant) {
  const JsonValue* value = fields.Find("priority");
  if (!value) return;
  std::vector<int64_t> ends;
  if (value->is_array()) {
    for (const JsonValue& item : value->items()) {
      if (item.kind() == JsonValue::Kind::kInteger) ends.push_back(item.integer());
    }
  }
  const auto fits = [](int64_t end) { return end >= INT32_MIN && end <= INT32_MAX; };
  if (ends.size() != 2 || value->size() != 2 || ends[0] > ends[1] ||
      !std::ranges::all_of(ends, fits)) {
    return fields.Fail("priority", "is not [lowest, highest], two integers of 32 bits in order");
  }
  tenant->least_priority = static_cast<int32_t>(ends[0]);
  tenant->most_priority = static_cast<int32_t>(ends[1]);
}

Status RefuseUnread(const JsonFields& fields, const std::string& at) {
  const std::vector<std::string> unread = fields.Unread();
  if (unread.empty()) return {};
  return Fail(Code::kInvalidArgument, "{}the field '{}' is unknown", at, unread.front());
}

Status ReadKey(const JsonValue& value, const std::string& at, size_t tenant, KeysFile* file) {
  if (!value.is_object()) {
    return Fail(Code::kInvalidArgument, "{} is {}, not {{\"sha256\": ...}}", at, KindOf(value));
  }
  JsonFields fields(value, at + ".");
  KeyEntry key{.sha256 = {}, .tenant = tenant};
  std::string hex;
  fields.String("sha256", &hex);
  fields.Bool("admin", &key.admin);
  if (fields.error()) return tl::unexpected(*fields.error());
  KV_TRY(RefuseUnread(fields, at + ": "));
  const auto digest = FromHex<sizeof(Digest)>(hex, HexCase::kAny);
  if (!digest) {
    return Fail(Code::kInvalidArgument,
                "{}.sha256 is not 64 hex digits; 'kvasir key new' prints a key and its entry", at);
  }
  key.sha256 = *digest;
  if (std::ranges::any_of(file->keys, [&](const KeyEntry& k) { return k.sha256 == *digest; })) {
    return Fail(Code::kInvalidArgument, "{}.sha256 occurs twice in the file; a key has one tenant",
                at);
  }
  file->keys.push_back(key);
  return {};
}

// Reads a number, or text such as "512MiB"; absent: not given, or refused.
std::optional<uint64_t> ReadBytes(JsonFields& fields, std::string_view name) {
  const JsonValue* value = fields.Find(name);
  if (!value) return std::nullopt;
  std::optional<uint64_t> bytes;
  if (value->kind() == JsonValue::Kind::kInteger && value->integer() >= 0) {
    bytes = static_cast<uint64_t>(value->integer());
  }
  if (value->kind() == JsonValue::Kind::kString) bytes = ParseBytes(value->text());
  if (!bytes) fields.Fail(name, "is not a number of bytes; give one, or text such as \"512MiB\"");
  return bytes;
}

void ReadQuota(JsonFields& fields, TenantRules* rules) {
  rules->kv_guaranteed = ReadBytes(fields, "kv_guaranteed").value_or(0);
  rules->kv_max = ReadBytes(fields, "kv_max");
  if (rules->kv_max && *rules->kv_max < rules->kv_guaranteed) {
    fields.Fail("kv_max", "is less than kv_guaranteed");
  }
}

void ReadRules(JsonFields& fields, TenantEntry* tenant) {
  float weight = 1;
  fields.Number("weight", 0.001, 1000, &weight);
  tenant->rules.weight = weight;
  ReadPriority(fields, tenant);
  ReadQuota(fields, &tenant->rules);
  fields.Bool("remote", &tenant->remote);
  fields.Unsigned("max_running", 1, TenantRules::kNoLimit, &tenant->rules.max_running);
  fields.Unsigned("max_queued", 0, TenantRules::kNoLimit, &tenant->rules.max_queued);
  fields.Unsigned("requests_per_minute", 1, UINT32_MAX, &tenant->requests_per_minute);
  fields.Unsigned("tokens_per_minute", 1, UINT32_MAX, &tenant->tokens_per_minute);
  if (fields.Has("share_group")) {
    tenant->share_group.emplace();
    fields.String("share_group", &*tenant->share_group);
    if (!IsTenantName(*tenant->share_group)) {
      fields.Fail("share_group", std::string(kTenantNameRule));
    }
  }
}

Status ReadTenant(std::string_view name, const JsonValue& value, KeysFile* file) {
  if (!IsTenantName(name)) {
    return Fail(Code::kInvalidArgument, "tenants: '{}' {}", name, kTenantNameRule);
  }
  // These are the names of tenants without an entry.
  if (name == "default" || name.starts_with("key-")) {
    return Fail(Code::kInvalidArgument,
                "tenants: '{}': the names 'default' and 'key-...' are taken; choose another", name);
  }
  const std::string at = fmt::format("tenants.{}", name);
  if (!value.is_object()) {
    return Fail(Code::kInvalidArgument, "{} is {}, not an object", at, KindOf(value));
  }
  TenantEntry tenant;
  tenant.name = name;
  JsonFields fields(value, at + ".");
  ReadRules(fields, &tenant);
  const JsonValue* keys = fields.Find("keys");
  if (keys && !keys->is_array()) fields.Fail("keys", "is not a list");
  if (fields.error()) return tl::unexpected(*fields.error());
  KV_TRY(RefuseUnread(fields, at + ": "));
  // Names have no '/', so a group's cache differs from every tenant's.
  if (tenant.share_group) tenant.rules.cache_owner = OwnerOfGroup(*tenant.share_group);
  const size_t index = file->tenants.size();
  file->tenants.push_back(std::move(tenant));
  for (size_t i = 0; keys && i < keys->size(); ++i) {
    KV_TRY(ReadKey(keys->items()[i], fmt::format("{}.keys[{}]", at, i), index, file));
  }
  return {};
}

Result<KeysFile> ReadTenants(const JsonValue& body) {
  JsonFields fields(body);
  const JsonValue* tenants = fields.Find("tenants");
  KV_TRY(RefuseUnread(fields, ""));
  if (!tenants || !tenants->is_object() || tenants->size() == 0) {
    return Fail(Code::kInvalidArgument, "has no tenants; write {{\"tenants\": {{NAME: {{...}}}}}}");
  }
  if (tenants->size() > kMaxFileTenants) {
    return Fail(Code::kInvalidArgument, "has {} tenants; at most {} are allowed", tenants->size(),
                kMaxFileTenants);
  }
  KeysFile file;
  for (const JsonValue::Member& member : tenants->members()) {
    KV_TRY(ReadTenant(member.key, member.value, &file));
  }
  return file;
}

}  // namespace

// Tells whether a tenant may have the name, which goes into logs and metrics.
bool IsTenantName(std::string_view name) {
  const auto allowed = [](char c) { return IsAsciiAlnum(c) || c == '.' || c == '_' || c == '-'; };
  return !name.empty() && name.size() <= kMaxTenantNameBytes && std::ranges::all_of(name, allowed);
}

std::string OwnerOfGroup(std::string_view group) { return "group/" + std::string(group); }

Result<KeysFile> ParseKeysFile(std::string_view text, const std::string& path) {
  const Result<JsonBody> body = ParseBody(text, {}, "the file");
  if (!body) {
    std::string what = body.error().text();
    constexpr std::string_view kOfRequests = "; send a JSON object";
    if (what.ends_with(kOfRequests)) what.resize(what.size() - kOfRequests.size());
    return FileFault(path, what + std::string(kAdvice));
  }
  Result<KeysFile> file = ReadTenants(body->fields);
  if (!file) return FileFault(path, file.error().text());
  return file;
}

Result<KeysFile> ReadKeysFile(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return FileFault(path, std::strerror(errno) + std::string(kAdvice));
  struct stat about;
  if (fstat(file.fd(), &about) != 0) return FileFault(path, std::strerror(errno));
  if (!S_ISREG(about.st_mode)) return FileFault(path, "is not a regular file");
  if ((about.st_mode & 077) != 0) {
    return FileFault(path, fmt::format("has mode {:04o}, so other users can read or change it; "
                                       "chmod 600 it",
                                       about.st_mode & 07777));
  }
  if (about.st_uid != geteuid() && about.st_uid != 0) {
    return FileFault(path, fmt::format("belongs to user {}, who can change it", about.st_uid));
  }
  if (about.st_size > kMaxFileBytes) {
    return FileFault(
        path, fmt::format("has {} bytes; at most {} are allowed", about.st_size, kMaxFileBytes));
  }
  std::string text(static_cast<size_t>(about.st_size), '\0');
  const ssize_t got = read(file.fd(), text.data(), text.size());
  if (got != about.st_size) return FileFault(path, "changed while it was read; try again");
  return ParseKeysFile(text, path);
}

}  // namespace kvasir
