// What lies in a folder of the tier where something of ours belongs: it gets another name, and
// links are not followed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tier/storage.h"

namespace kvasir {

// Gives what lies under this name, file or folder, another one beside it, logs it, and returns that
// name: what cannot be read is not in the way, and stays.
IoResult<std::string> SetAside(Storage& storage, FileId folder, const std::string& name);
// Returns the name under which SetAside found it; absent: it never was set aside.
std::optional<std::string> NameBeforeAside(std::string_view name);
// Returns the name under which something belongs there.
std::string NameOfOrigin(const std::string& name);
// Removes the file. False: no file has this name. A folder that has it stays.
IoResult<bool> RemoveFile(Storage& storage, FileId folder, const std::string& name);
// Removes all that was set aside for a name. False: there was nothing.
IoResult<bool> RemoveAsidesOf(Storage& storage, FileId folder, const std::string& name);

// Opens the folder's sub-folder; makes it, and its name durable, where it is missing. What else has
// the name is set aside.
IoResult<OpenedFile> OpenOrMake(Storage& storage, FileId folder, const std::string& name);
// Opens a file to lock, made where it is missing. What is not a file is set aside.
IoResult<OpenedFile> OpenLockFile(Storage& storage, FileId folder, const std::string& name);

// Lists links that lay where stores, their keys or those of SealedRows belong and were set aside,
// and links to keys that no start has seen yet, by their paths in the tier's folder. They are not
// followed, and what they lead to may have blocks of any owner, or open rows of any owner.
IoResult<std::vector<std::string>> ListLinks(Storage& storage, FileId root);
// Returns whether a store has such a link to keys.
IoResult<bool> HasLinkedKeys(Storage& storage, FileId folder);
// Lists such links to keys, by their names in a store's folder.
IoResult<std::vector<std::string>> LinksToKeys(Storage& storage, FileId folder);
// Returns whether the name in the tier's folder is such a link to the keys of SealedRows.
bool IsLinkToRowsKeys(Storage& storage, FileId root, const std::string& name);

}  // namespace kvasir
