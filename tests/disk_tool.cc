// disk_tool DIR STATE_DIR RECORDS: fills the only store of a disk tier's folder, which no process
// uses, with so many more records: headers as the tier writes them, payloads that are holes. For
// tests of how long a start takes.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/hex.h"
#include "base/random.h"
#include "tier/key_files.h"
#include "tier/store_files.h"

namespace kvasir {
namespace {

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "disk_tool: %s\n", message.c_str());
  std::exit(1);
}
template <typename T>
T Must(IoResult<T> result, const char* what) {
  if (!result) Die(std::string(what) + ": error " + std::to_string(result.error()));
  return std::move(*result);
}
void Must(IoStatus done, const char* what) {
  if (!done) Die(std::string(what) + ": error " + std::to_string(done.error()));
}

constexpr uint32_t kChainRecords = 64;  // a prompt of 1,024 tokens in blocks of 16

template <typename Array>
Array Drawn(Random& random) {
  Array array;
  for (auto& byte : array) byte = static_cast<uint8_t>(random.Bits());
  return array;
}

// The head of the store's first segment, and a record in it.
struct Sample {
  SegmentHead head;
  RecordPublic record;
};
Sample SampleOf(Storage& storage, FileId store, const HmacKey& head_key, const StoreId& id) {
  const OpenedFile file(storage, Must(storage.OpenFile(store, SegmentFileName(0), OpenMode::kRead),
                                      "the first segment"));
  const auto head = Must(ReadHead(storage, file.id(), head_key, id, 0), "its head");
  if (!head) Die("the first segment is not one of this secret");
  std::vector<std::byte> header(head->shape.record.header_bytes());
  Must(ReadAll(storage, file.id(), header, head->shape.header_at(0)), "its first header");
  const auto record = DecodePublic(std::span(header).first<kPublicBytes>());
  if (!record) Die("its first slot has no record");
  return {*head, *record};
}

void Fill(const std::string& folder, const std::string& state_dir, uint64_t num_records) {
  const auto secret = LoadOrCreateSecret(state_dir);
  if (!secret) Die(secret.error().message);
  RealStorage storage;
  const OpenedFile root(storage, Must(storage.OpenRoot(folder), "the folder"));
  std::optional<std::string> name;
  for (const std::string& one : Must(storage.List(root.id()), "the folder")) {
    if (ParseStoreName(one)) name = one;
  }
  if (!name) Die("there is no store");
  const StoreId id = *ParseStoreName(*name);
  const OpenedFile store(storage, Must(storage.OpenFolder(root.id(), *name), "the store"));
  const OpenedFile keys(storage, Must(storage.OpenFolder(store.id(), "keys"), "the keys"));
  const auto owners = Must(LoadKeys(storage, keys.id(), *secret, id), "the keys");
  if (owners.size() != 1) Die("the store must have one owner");
  const HmacKey head_key = HeadKeyOf(*secret);
  Sample sample = SampleOf(storage, store.id(), head_key, id);
  const SegmentShape& shape = sample.head.shape;
  Random random(18);
  std::vector<std::byte> headers(shape.slots * shape.record.header_bytes());
  const std::vector<std::byte> tokens(uint64_t{4} * shape.record.block_tokens);
  RecordName before;
  BlockKey parent{};
  for (uint64_t done = 0; done < num_records;) {
    ++sample.head.segment;
    sample.head.generation = random.Bits();
    const OpenedFile file(
        storage,
        Must(storage.OpenFile(store.id(), SegmentFileName(sample.head.segment), OpenMode::kCreate),
             "a new segment"));
    std::fill(headers.begin(), headers.end(), std::byte{0});
    for (uint32_t slot = 0; slot < shape.slots && done < num_records; ++slot, ++done) {
      RecordPublic record = sample.record;
      record.placings = 0;
      record.place = {.store = id,
                      .segment = sample.head.segment,
                      .slot = slot,
                      .generation = sample.head.generation};
      record.name.key = Drawn<BlockKey>(random);
      record.salt = Drawn<RecordSalt>(random);
      const bool begins = done % kChainRecords == 0;
      record.after = begins ? std::nullopt : std::optional(before);
      record.parent = begins ? Drawn<BlockKey>(random) : parent;
      before = record.name;
      parent = record.name.key;
      const auto header = std::span(headers).subspan(slot * shape.record.header_bytes(),
                                                     shape.record.header_bytes());
      if (!SealHeader(RecordKeyOf(owners[0].key, record.salt), record, shape.record.block_tokens,
                      tokens, header)) {
        Die("no memory");
      }
    }
    std::array<std::byte, kHeadBytes> head;
    EncodeHead(head_key, sample.head, head);
    Must(WriteAll(storage, file.id(), head, 0), "a head");
    Must(WriteAll(storage, file.id(), headers, shape.header_at(0)), "headers");
    // The last byte gives the file its length; what lies between is a hole.
    Must(WriteAll(storage, file.id(), std::array<std::byte, 1>{}, shape.segment_bytes - 1),
         "the end");
    Must(storage.SyncData(file.id()), "a sync");
  }
  Must(storage.SyncFolder(store.id()), "a sync");
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) {
  if (argc != 4) kvasir::Die("usage: disk_tool DIR STATE_DIR RECORDS");
  kvasir::Fill(argv[1], argv[2], std::strtoull(argv[3], nullptr, 10));
}
