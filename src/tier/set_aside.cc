#include "tier/set_aside.h"

#include <cerrno>

#include "base/log.h"
#include "base/sizes.h"
#include "tier/store_files.h"

namespace kvasir {
namespace {

constexpr std::string_view kAsideMark = ".aside-";
constexpr int kMaxAsides = 1000;

bool IsLink(Storage& storage, FileId folder, const std::string& name) {
  const IoResult<FileFacts> facts = storage.FactsOf(folder, name);
  return facts && facts->kind == FileFacts::Kind::kOther;
}

}  // namespace

IoResult<std::string> SetAside(Storage& storage, FileId folder, const std::string& name) {
  for (int number = 1; number < kMaxAsides; ++number) {
    std::string aside = fmt::format("{}{}{}", name, kAsideMark, number);
    if (storage.FactsOf(folder, aside)) continue;
    IoStatus moved = storage.Rename(folder, name, aside);
    if (moved) moved = storage.SyncFolder(folder);
    if (!moved) return IoFailed(moved.error());
    Log(LogLevel::kWarning, "disk tier: what cannot be read was set aside, and stays there",
        LogField("name", name), LogField("now", aside));
    return aside;
  }
  return IoFailed(EEXIST);
}

std::optional<std::string> NameBeforeAside(std::string_view name) {
  const size_t mark = name.rfind(kAsideMark);
  if (mark == name.npos || mark == 0) return std::nullopt;
  const auto number = ParseUint(name.substr(mark + kAsideMark.size()));
  if (!number || *number >= kMaxAsides) return std::nullopt;
  return std::string(name.substr(0, mark));
}

std::string NameOfOrigin(const std::string& name) { return NameBeforeAside(name).value_or(name); }

IoResult<bool> RemoveFile(Storage& storage, FileId folder, const std::string& name) {
  const IoStatus removed = storage.Unlink(folder, name);
  if (removed) return true;
  const IoResult<FileFacts> facts = storage.FactsOf(folder, name);
  const bool is_folder = facts && facts->kind == FileFacts::Kind::kFolder;
  if (removed.error() == ENOENT || is_folder) return false;
  return IoFailed(removed.error());
}

IoResult<bool> RemoveAsidesOf(Storage& storage, FileId folder, const std::string& name) {
  const IoResult<std::vector<std::string>> names = storage.List(folder);
  if (!names) return IoFailed(names.error());
  bool had_some = false;
  for (const std::string& one : *names) {
    if (NameBeforeAside(one) != name) continue;
    const IoResult<bool> removed = RemoveFile(storage, folder, one);
    if (!removed) return removed;
    had_some |= *removed;
  }
  return had_some;
}

IoResult<OpenedFile> OpenOrMake(Storage& storage, FileId folder, const std::string& name) {
  IoResult<FileId> opened = storage.OpenFolder(folder, name);
  if (!opened && (opened.error() == ENOTDIR || opened.error() == ELOOP)) {
    if (const auto aside = SetAside(storage, folder, name); !aside) return IoFailed(aside.error());
    opened = IoFailed(ENOENT);
  }
  if (!opened && opened.error() == ENOENT) {
    const IoStatus made = storage.MakeFolder(folder, name);
    if (!made && made.error() != EEXIST) return IoFailed(made.error());
    if (const IoStatus synced = storage.SyncFolder(folder); !synced) {
      return IoFailed(synced.error());
    }
    opened = storage.OpenFolder(folder, name);
  }
  return Own(storage, opened);
}

IoResult<OpenedFile> OpenLockFile(Storage& storage, FileId folder, const std::string& name) {
  IoResult<OpenedFile> lock = Own(storage, storage.OpenFile(folder, name, OpenMode::kWriteOrNew));
  if (lock || !IsNoFile(lock.error())) return lock;
  if (const auto aside = SetAside(storage, folder, name); !aside) return IoFailed(aside.error());
  return Own(storage, storage.OpenFile(folder, name, OpenMode::kWriteOrNew));
}

bool IsLinkToRowsKeys(Storage& storage, FileId root, const std::string& name) {
  return NameOfOrigin(name) == kRowsKeysName && IsLink(storage, root, name);
}

IoResult<std::vector<std::string>> LinksToKeys(Storage& storage, FileId folder) {
  IoResult<std::vector<std::string>> names = storage.List(folder);
  if (!names) return names;
  std::erase_if(*names, [&](const std::string& name) {
    return NameOfOrigin(name) != kKeysName || !IsLink(storage, folder, name);
  });
  return names;
}

IoResult<bool> HasLinkedKeys(Storage& storage, FileId folder) {
  const auto links = LinksToKeys(storage, folder);
  if (!links) return IoFailed(links.error());
  return !links->empty();
}

IoResult<std::vector<std::string>> ListLinks(Storage& storage, FileId root) {
  const IoResult<std::vector<std::string>> names = storage.List(root);
  if (!names) return IoFailed(names.error());
  std::vector<std::string> links;
  for (const std::string& name : *names) {
    if (IsLinkToRowsKeys(storage, root, name)) links.push_back(name);
    if (!ParseStoreName(NameOfOrigin(name))) continue;
    if (IsLink(storage, root, name)) {  // the name alone does not say whether a store is ours
      if (NameBeforeAside(name)) links.push_back(name);
      continue;
    }
    const IoResult<OpenedFile> folder = Own(storage, storage.OpenFolder(root, name));
    if (!folder) continue;
    const auto keys = LinksToKeys(storage, folder->id());
    if (!keys) return IoFailed(keys.error());
    for (const std::string& one : *keys) links.push_back(name + "/" + one);
  }
  return links;
}

}  // namespace kvasir
