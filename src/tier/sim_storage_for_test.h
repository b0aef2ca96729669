// SimStorage: a disk in memory that loses, reorders and damages what a real one may.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/random.h"
#include "tier/storage.h"

namespace kvasir {

// How often a call fails, of 2^16 calls.
struct SimFaults {
  uint32_t short_write = 0, interrupted = 0, no_space = 0;
  uint32_t read_error = 0, write_error = 0, sync_error = 0;
  uint32_t flipped = 0, stale = 0, misdirected = 0;  // sectors that a read returns
};

// Files are sectors of 512 bytes. A write is volatile until a sync of its file, a name until a sync
// of its folder. Crash keeps, of each sector, size and name that was not synced, one of the
// versions since the last sync, each independently. A sync that fails leaves the volatile bytes as
// they are and forgets that they are volatile: the next one succeeds and keeps nothing of them. One
// thread.
class SimStorage : public Storage {
 public:
  explicit SimStorage(uint64_t seed) : random_(seed), root_(std::make_shared<Node>()) {
    root_->is_folder = true;
  }
  // Copies the disk, without open files.
  SimStorage(const SimStorage& other, uint64_t seed) : SimStorage(seed) {
    root_ = Copy(*other.root_);
    unix_s_ = other.unix_s_;
    monotonic_ns_ = other.monotonic_ns_;
  }
  SimStorage(const SimStorage&) = delete;

  SimFaults faults;
  int no_space_error = ENOSPC;
  uint64_t cap_bytes = UINT64_MAX;
  uint64_t free_bytes = uint64_t{1} << 40;
  std::optional<uint64_t> stops_at;  // the call that is not made any more, nor any after it
  std::function<void()> on_stop;     // the last thing before that

  uint64_t num_calls() const { return calls_; }
  uint64_t num_opens() const { return num_opens_; }  // of the tier's folder
  bool is_stopped() const { return is_stopped_; }
  bool has_exceeded_cap() const { return has_exceeded_cap_; }
  void PassTime(int64_t seconds) {
    if (is_stopped_) return;
    unix_s_ += seconds;
    if (seconds > 0) monotonic_ns_ += static_cast<uint64_t>(seconds) * 1'000'000'000;
  }
  void JumpClock(int64_t seconds) { unix_s_ += seconds; }

  // Crashes: the machine loses power and starts again.
  void Crash() {
    handles_.clear();
    CrashFolder(*root_);
    is_stopped_ = false;
    stops_at.reset();
    on_stop = nullptr;
    calls_ = 0;
  }
  // Returns whether bytes of this kind are in any file, synced or not.
  bool Contains(std::span<const std::byte> bytes) const { return Contains(*root_, bytes); }
  bool HasFile(const std::string& name) const { return HasName(*root_, name); }

  IoResult<FileId> OpenRoot(const std::string&) override {
    if (!Step()) return IoFailed(EIO);
    ++num_opens_;
    return NewHandle(root_);
  }
  IoResult<FileId> OpenFolder(FileId folder, const std::string& name) override {
    if (!Step()) return IoFailed(EIO);
    const std::shared_ptr<Node> found = FindIn(folder, name);
    if (found == nullptr) return IoFailed(ENOENT);
    if (!found->is_folder) return IoFailed(ENOTDIR);
    return NewHandle(found);
  }
  IoStatus MakeFolder(FileId folder, const std::string& name) override {
    if (!Step()) return IoFailed(EIO);
    if (FindIn(folder, name) != nullptr) return IoFailed(EEXIST);
    auto made = std::make_shared<Node>();
    made->is_folder = true;
    at(folder).names[name] = made;
    return {};
  }
  IoResult<FileId> OpenFile(FileId folder, const std::string& name, OpenMode mode) override {
    if (!Step()) return IoFailed(EIO);
    std::shared_ptr<Node> found = FindIn(folder, name);
    if (found != nullptr && mode == OpenMode::kCreate) return IoFailed(EEXIST);
    if (found == nullptr && (mode == OpenMode::kRead || mode == OpenMode::kWrite)) {
      return IoFailed(ENOENT);
    }
    if (found == nullptr) {
      if (Happens(faults.no_space)) return IoFailed(no_space_error);
      found = std::make_shared<Node>();
      at(folder).names[name] = found;
    }
    return NewHandle(found);
  }
  void Close(FileId file) override { handles_.erase(static_cast<int>(file)); }

  IoResult<uint64_t> ReadSome(FileId file, std::span<const std::span<std::byte>> pieces,
                              uint64_t offset) override {
    if (!Step()) return IoFailed(EIO);
    if (Happens(faults.interrupted)) return IoFailed(EINTR);
    if (Happens(faults.read_error)) return IoFailed(EIO);
    const Node& node = at(file);
    uint64_t read = 0;
    for (const std::span<std::byte> piece : pieces) {
      for (uint64_t done = 0; done < piece.size();) {
        if (offset >= node.size) return read;
        const uint64_t number = offset / kSector, from = offset % kSector;
        const uint64_t step = std::min({kSector - from, piece.size() - done, node.size - offset});
        const Bytes sector = Returned(node, number);
        std::memcpy(piece.data() + done, sector.data() + from, step);
        done += step;
        offset += step;
        read += step;
      }
    }
    return read;
  }
  IoResult<uint64_t> WriteSome(FileId file, std::span<const std::byte> bytes,
                               uint64_t offset) override {
    if (!Step()) return IoFailed(EIO);
    if (Happens(faults.interrupted)) return IoFailed(EINTR);
    if (Happens(faults.no_space)) return IoFailed(no_space_error);
    if (Happens(faults.write_error)) return IoFailed(EIO);
    if (bytes.size() > 1 && Happens(faults.short_write)) {
      bytes = bytes.first(1 + random_.Below(bytes.size() - 1));
    }
    Node& node = at(file);
    Put(node, bytes, offset);
    return bytes.size();
  }
  IoStatus SyncData(FileId file) override {
    if (!Step()) return IoFailed(EIO);
    Node& node = at(file);
    const bool fails = Happens(faults.sync_error);
    for (auto& [number, sector] : node.sectors) {
      if (fails && !sector.newer.empty()) sector.is_lost = true;
      if (!sector.newer.empty() && !sector.is_lost) sector.Sync();
    }
    if (fails) return IoFailed(EIO);
    node.synced_size = node.size;
    return {};
  }
  IoStatus SyncFolder(FileId folder) override {
    if (!Step()) return IoFailed(EIO);
    if (Happens(faults.sync_error)) return IoFailed(EIO);
    at(folder).synced_names = at(folder).names;
    return {};
  }
  IoStatus Allocate(FileId file, uint64_t bytes) override {
    if (!Step()) return IoFailed(EIO);
    if (Happens(faults.no_space)) return IoFailed(no_space_error);
    at(file).size = std::max(at(file).size, bytes);
    NoteCap();
    return {};
  }
  IoStatus PunchHole(FileId file, uint64_t offset, uint64_t bytes) override {
    if (!Step()) return IoFailed(EIO);
    if (Happens(faults.write_error)) return IoFailed(EIO);
    // In pieces: a crash may keep some of them.
    Node& node = at(file);
    const uint64_t end = std::min(offset + bytes, node.size);
    for (; offset < end; offset += kSector) {
      const auto found = node.sectors.find(offset / kSector);
      KV_CHECK(offset % kSector == 0);
      if (found != node.sectors.end()) found->second.Write(Bytes{});
    }
    return {};
  }
  IoStatus Rename(FileId folder, const std::string& from, const std::string& to) override {
    if (!Step()) return IoFailed(EIO);
    const std::shared_ptr<Node> found = FindIn(folder, from);
    if (found == nullptr) return IoFailed(ENOENT);
    if (Happens(faults.write_error)) return IoFailed(EIO);
    at(folder).names.erase(from);
    at(folder).names[to] = found;
    return {};
  }
  IoStatus Unlink(FileId folder, const std::string& name) override {
    if (!Step()) return IoFailed(EIO);
    if (FindIn(folder, name) == nullptr) return IoFailed(ENOENT);
    if (Happens(faults.write_error)) return IoFailed(EIO);
    at(folder).names.erase(name);
    return {};
  }
  IoResult<std::vector<std::string>> List(FileId folder) override {
    if (!Step()) return IoFailed(EIO);
    if (Happens(faults.read_error)) return IoFailed(EIO);
    std::vector<std::string> names;
    for (const auto& [name, node] : at(folder).names) names.push_back(name);
    return names;
  }
  IoResult<FileFacts> FactsOf(FileId file) override {
    if (!Step()) return IoFailed(EIO);
    return FactsFrom(at(file));
  }
  IoResult<FileFacts> FactsOf(FileId folder, const std::string& name) override {
    if (!Step()) return IoFailed(EIO);
    const std::shared_ptr<Node> found = FindIn(folder, name);
    if (found == nullptr) return IoFailed(ENOENT);
    return FactsFrom(*found);
  }
  IoResult<TreeFacts> TreeBytes(FileId folder, std::string_view whole_prefix) override {
    if (!Step()) return IoFailed(EIO);
    TreeFacts tree;
    AddTree(at(folder), whole_prefix, &tree);
    return tree;
  }
  IoResult<SpaceFacts> Space(FileId) override {
    if (!Step()) return IoFailed(EIO);
    return SpaceFacts{.free_bytes = free_bytes, .total_bytes = free_bytes, .is_durable = true};
  }
  IoResult<bool> TryLock(FileId file) override {
    if (!Step()) return IoFailed(EIO);
    const std::shared_ptr<Node>& node = handles_.at(static_cast<int>(file)).node;
    for (const auto& [number, handle] : handles_) {
      if (handle.node == node && handle.is_lock && number != static_cast<int>(file)) return false;
    }
    handles_.at(static_cast<int>(file)).is_lock = true;
    return true;
  }
  int64_t UnixS() override { return unix_s_; }
  uint64_t MonotonicNs() override { return monotonic_ns_; }
  bool FillRandom(std::span<uint8_t> bytes) override {
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_.Bits());
    return true;
  }

 private:
  static constexpr uint64_t kSector = 512;
  using Bytes = std::array<std::byte, kSector>;
  struct Sector {
    Bytes synced{};
    std::vector<Bytes> newer;  // since the last sync; the last one is what reads see
    bool is_lost = false;      // a sync failed: no later one keeps it
    const Bytes& now() const { return newer.empty() ? synced : newer.back(); }
    void Write(const Bytes& bytes) {
      newer.push_back(bytes);
      is_lost = false;
    }
    void Sync() {
      synced = newer.back();
      newer.clear();
    }
  };
  struct Node {
    bool is_folder = false;
    uint64_t size = 0, synced_size = 0;
    std::map<uint64_t, Sector> sectors;  // those that are not zeros
    std::map<std::string, std::shared_ptr<Node>> names, synced_names;
  };
  struct Handle {
    std::shared_ptr<Node> node;
    bool is_lock = false;
  };

  // False: the machine has stopped.
  bool Step() {
    monotonic_ns_ += 50'000;
    if (is_stopped_) return false;
    if (stops_at && calls_ == *stops_at) {
      if (on_stop) on_stop();
      is_stopped_ = true;
      return false;
    }
    ++calls_;
    return true;
  }
  bool Happens(uint32_t of_65536) { return of_65536 > 0 && (random_.Bits() & 0xFFFF) < of_65536; }
  IoResult<FileId> NewHandle(std::shared_ptr<Node> node) {
    handles_[next_handle_] = {.node = std::move(node)};
    return FileId{next_handle_++};
  }
  Node& at(FileId file) { return *handles_.at(static_cast<int>(file)).node; }
  std::shared_ptr<Node> FindIn(FileId folder, const std::string& name) {
    const auto& names = at(folder).names;
    const auto found = names.find(name);
    return found == names.end() ? nullptr : found->second;
  }
  static FileFacts FactsFrom(const Node& node) {
    return {.kind = node.is_folder ? FileFacts::Kind::kFolder : FileFacts::Kind::kFile,
            .bytes = node.size,
            .blocks_bytes = RoundUp(node.size, 4096),
            .is_private = true};
  }
  Bytes Returned(const Node& node, uint64_t number) {
    if (Happens(faults.misdirected)) number += 1 + random_.Below(4);
    const auto found = node.sectors.find(number);
    Bytes bytes{};
    if (found != node.sectors.end()) {
      bytes = Happens(faults.stale) ? found->second.synced : found->second.now();
    }
    if (Happens(faults.flipped)) {
      bytes[random_.Below(kSector)] ^= std::byte(1 << random_.Below(8));
    }
    return bytes;
  }
  void Put(Node& node, std::span<const std::byte> bytes, uint64_t offset) {
    for (uint64_t done = 0; done < bytes.size();) {
      const uint64_t at = offset + done, from = at % kSector;
      const uint64_t step = std::min(kSector - from, bytes.size() - done);
      Sector& sector = node.sectors[at / kSector];
      Bytes written = sector.now();
      std::memcpy(written.data() + from, bytes.data() + done, step);
      sector.Write(written);
      done += step;
    }
    node.size = std::max(node.size, offset + bytes.size());
    NoteCap();
  }
  static void AddTree(const Node& folder, std::string_view prefix, TreeFacts* tree) {
    tree->other_bytes += 4096;
    for (const auto& [name, node] : folder.names) {
      if (node->is_folder) {
        AddTree(*node, prefix, tree);
      } else if (name.starts_with(prefix)) {
        tree->whole_bytes += RoundUp(node->size, 4096);
      } else {
        tree->other_bytes += RoundUp(node->size, 4096);
      }
    }
  }
  // Notes whether the cap holds, after each call that may take room.
  void NoteCap() {
    TreeFacts tree;
    AddTree(*root_, "seg-", &tree);
    has_exceeded_cap_ |= tree.whole_bytes + tree.other_bytes > cap_bytes;
  }

  void CrashFolder(Node& folder) {
    std::map<std::string, std::shared_ptr<Node>> kept;
    std::map<std::string, std::shared_ptr<Node>> all = folder.synced_names;
    all.insert(folder.names.begin(), folder.names.end());
    for (const auto& [name, any] : all) {
      const auto pick = random_.Below(2) == 0 ? &folder.names : &folder.synced_names;
      const auto found = pick->find(name);
      if (found != pick->end()) kept[name] = found->second;
    }
    folder.names = folder.synced_names = kept;
    for (const auto& [name, node] : kept) {
      if (node->is_folder) {
        CrashFolder(*node);
      } else {
        CrashFile(*node);
      }
    }
  }
  void CrashFile(Node& file) {
    for (auto& [number, sector] : file.sectors) {
      if (sector.newer.empty()) continue;
      const uint64_t pick = random_.Below(sector.newer.size() + 1);
      if (pick > 0) sector.synced = sector.newer[pick - 1];
      sector.newer.clear();
      sector.is_lost = false;
    }
    if (random_.Below(2) == 0) file.size = file.synced_size;
    file.synced_size = file.size;
    std::erase_if(file.sectors, [&](const auto& one) { return one.first * kSector >= file.size; });
  }
  static std::shared_ptr<Node> Copy(const Node& node) {
    KV_CHECK(node.names == node.synced_names);  // as after a crash
    auto copy = std::make_shared<Node>();
    copy->is_folder = node.is_folder;
    copy->size = node.size;
    copy->synced_size = node.synced_size;
    copy->sectors = node.sectors;
    for (const auto& [name, inner] : node.names) copy->names[name] = Copy(*inner);
    copy->synced_names = copy->names;
    return copy;
  }
  static bool Contains(const Node& node, std::span<const std::byte> bytes) {
    for (const auto& [number, sector] : node.sectors) {
      const auto has = [&](const Bytes& all) {
        return std::search(all.begin(), all.end(), bytes.begin(), bytes.end()) != all.end();
      };
      if (has(sector.synced) || std::ranges::any_of(sector.newer, has)) return true;
    }
    for (const auto* names : {&node.names, &node.synced_names}) {
      for (const auto& [name, inner] : *names) {
        if (Contains(*inner, bytes)) return true;
      }
    }
    return false;
  }
  static bool HasName(const Node& node, const std::string& name) {
    if (node.names.contains(name) || node.synced_names.contains(name)) return true;
    for (const auto* names : {&node.names, &node.synced_names}) {
      for (const auto& [other, inner] : *names) {
        if (HasName(*inner, name)) return true;
      }
    }
    return false;
  }

  Random random_;
  std::shared_ptr<Node> root_;
  std::map<int, Handle> handles_;
  int next_handle_ = 3;
  uint64_t calls_ = 0, num_opens_ = 0;
  bool is_stopped_ = false, has_exceeded_cap_ = false;
  int64_t unix_s_ = 1'760'000'000;
  uint64_t monotonic_ns_ = 1'000'000'000;
};

}  // namespace kvasir
