// What the disk tier's folder says that is stored, read from the headers of all slots, as a start
// reads it: also what the running engine does not know any more.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/secret.h"
#include "tier/key_files.h"
#include "tier/store_files.h"

namespace kvasir {

// Records of blocks, each with its own tokens, by key. The key says what comes before.
class DiskRecords {
 public:
  using Text = std::vector<TokenId>;
  struct Record {
    std::optional<BlockKey> before;
    Text tokens;
    bool operator==(const Record&) const = default;
  };
  using Records = std::map<BlockKey, Record>;

  static Records Read(const std::string& path, const std::string& state_dir) {
    Records records;
    const auto secret = LoadOrCreateSecret(state_dir);
    RealStorage storage;
    const auto root = Own(storage, storage.OpenRoot(path));
    EXPECT_TRUE(secret && root);
    const auto names = storage.List(root->id());
    for (const std::string& name : *names) {
      const auto store = ParseStoreName(name);
      if (!store) continue;
      const auto folder = Own(storage, storage.OpenFolder(root->id(), name));
      const auto keys_folder = Own(storage, storage.OpenFolder(folder->id(), "keys"));
      const auto keys = LoadKeys(storage, keys_folder->id(), *secret, *store);
      EXPECT_TRUE(keys);
      const auto files = storage.List(folder->id());
      for (const std::string& file_name : *files) {
        const auto number = ParseSegmentFileName(file_name);
        if (!number) continue;
        const auto file = Own(storage, storage.OpenFile(folder->id(), file_name, OpenMode::kRead));
        const auto head = ReadHead(storage, file->id(), HeadKeyOf(*secret), *store, *number);
        EXPECT_TRUE(head);
        if (!*head) continue;  // a kill came while it was made: no start reads it
        for (uint32_t slot = 0; slot < (*head)->shape.slots; ++slot) {
          AddSlot(storage, file->id(), (*head)->shape, slot, *keys, &records);
        }
      }
    }
    return records;
  }

  // Returns all tokens up to the end of this record; absent: one before it is not among those.
  static std::optional<Text> TextOf(const Records& records, const BlockKey& key) {
    std::vector<const Record*> chain;
    for (std::optional<BlockKey> at = key; at;) {
      const auto found = records.find(*at);
      if (found == records.end()) return std::nullopt;
      chain.push_back(&found->second);
      at = found->second.before;
    }
    Text text;
    for (auto one = chain.rbegin(); one != chain.rend(); ++one) {
      text.insert(text.end(), (*one)->tokens.begin(), (*one)->tokens.end());
    }
    return text;
  }

 private:
  static void AddSlot(Storage& storage, FileId file, const SegmentShape& shape, uint32_t slot,
                      const std::vector<OwnerKey>& keys, Records* records) {
    std::vector<std::byte> header(shape.record.header_bytes());
    EXPECT_TRUE(ReadAll(storage, file, header, shape.header_at(slot)));
    const auto record = DecodePublic(std::span(header).first<kPublicBytes>());
    if (!record || record->name.part != 0 || record->name.layer_group != 0) return;
    const auto key = std::ranges::find(keys, record->namespace_id, &OwnerKey::namespace_id);
    if (key == keys.end()) return;
    std::vector<TokenId> tokens(shape.record.block_tokens);
    if (!UnsealHeader(RecordKeyOf(key->key, record->salt), record->placings,
                      shape.record.block_tokens, header,
                      std::as_writable_bytes(std::span(tokens)))) {
      return;
    }
    std::optional<BlockKey> before;
    if (record->after) before = record->after->key;
    (*records)[record->name.key] = {before, std::move(tokens)};
  }
};

}  // namespace kvasir
