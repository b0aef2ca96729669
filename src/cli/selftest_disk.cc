// The checks of selftest that have a disk, in a temporary folder.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/fault.h"
#include "base/result.h"
#include "cli/selftest_run.h"
#include "cli/temporary_folder.h"

namespace kvasir::cli {
namespace {

namespace fs = std::filesystem;

// Returns a cap that has room for all that a check stores. The tier divides it into segments, which
// some checks read and write whole: with the default cap they have 64 MiB, of a small model 1 MiB.
uint64_t CapBytes(Lab& lab) {
  constexpr uint64_t kLeast = uint64_t{64} << 20;  // more makes larger segments
  constexpr uint64_t kPrompts = 32;                // that it has room for; a check stores a dozen
  const MemoryPlan& plan = lab.engine().plan();
  const uint64_t blocks =
      CeilDiv(lab.prompt().size() + lab.answer_tokens(), uint64_t{plan.block_tokens}) + 1;
  // The blocks of all groups of layers for the same tokens, each rounded up.
  const uint64_t bytes =
      plan.kv_bytes_per_token * plan.block_tokens + plan.groups.size() * plan.block_bytes;
  return kLeast + kPrompts * blocks * bytes;
}

// Returns the lab's options with a disk in the folder. Where the user's secret does not last, with
// another one beside the disk, which no model image is kept under.
Result<EngineOptions> OnDisk(Lab& lab, const TemporaryFolder& folder) {
  EngineOptions options = lab.options();
  options.disk = DiskOptions{.folder = (folder.path() / "kv").string(), .cap_bytes = CapBytes(lab)};
  KV_ASSIGN(const auto engine, lab.Load(options));
  if (engine->DiskStats()) return options;
  options.state_dir = folder.path() / "state";
  options.image_cap_bytes = 0;
  return options;
}

// Runs an engine that computes the prompt for each tenant, stores it, and ends.
Status Store(const Lab& lab, const EngineOptions& options,
             const std::vector<std::string>& tenants) {
  KV_ASSIGN(const auto engine, lab.Load(options));
  for (const std::string& tenant : tenants) {
    GenerateRequest request = lab.Ask(lab.prompt());
    request.tenant = tenant;
    KV_TRY(RunAlone(*engine, std::move(request)));
  }
  return Flush(*engine);
}

uint32_t WholeBlocks(const Lab& lab) {
  const auto most = static_cast<uint32_t>(lab.prompt().size()) - 1;
  return most / lab.options().block_tokens * lab.options().block_tokens;
}

void ExpectFromDisk(Check& check, const Lab& lab, const Generated& generated,
                    const std::string& what) {
  check.Expect(generated.receipt.reused_disk == WholeBlocks(lab),
               fmt::format("{}: {} tokens from the disk, not {}", what,
                           generated.receipt.reused_disk, WholeBlocks(lab)));
}

// Returns each segment file under the folder.
std::vector<fs::path> Segments(const TemporaryFolder& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path() / "kv")) {
    if (entry.path().extension() == ".kvs") paths.push_back(entry.path());
  }
  return paths;
}

// Places of the tables and payloads in a segment, by its head (docs/formats/segment.md).
struct SegmentPlaces {
  uint32_t header_bytes = 0, slots = 0;
  uint64_t stride_bytes = 0, payloads_at = 0;
};
constexpr uint64_t kPageBytes = 4096;

Result<SegmentPlaces> PlacesOf(std::span<const char> bytes, const fs::path& path) {
  SegmentPlaces places;
  uint64_t payload_bytes = 0;
  if (bytes.size() < kPageBytes) return Fail(Code::kIoError, "cannot read {}", path.string());
  std::memcpy(&places.header_bytes, bytes.data() + 12, sizeof(places.header_bytes));
  std::memcpy(&places.slots, bytes.data() + 20, sizeof(places.slots));
  std::memcpy(&payload_bytes, bytes.data() + 24, sizeof(payload_bytes));
  places.stride_bytes = RoundUp(payload_bytes, kPageBytes);
  places.payloads_at =
      RoundUp(kPageBytes + uint64_t{places.slots} * (places.header_bytes + 4), kPageBytes);
  if (places.payloads_at + places.slots * places.stride_bytes > bytes.size()) {
    return Fail(Code::kIoError, "{} is not a segment", path.string());
  }
  return places;
}

// Moves each record, header and payload, to the next slot.
Status MoveRecords(const fs::path& path) {
  std::vector<char> bytes(fs::file_size(path));
  std::ifstream(path, std::ios::binary)
      .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  KV_ASSIGN(const SegmentPlaces places, PlacesOf(bytes, path));
  const auto move = [&](uint64_t first, uint64_t each) {
    char* const begin = bytes.data() + first;
    std::rotate(begin, begin + (places.slots - 1) * each, begin + places.slots * each);
  };
  move(kPageBytes, places.header_bytes);
  move(places.payloads_at, places.stride_bytes);
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (file.flush()) return {};
  return Fail(Code::kIoError, "cannot change {}", path.string());
}

// Changes one byte in each page that has any.
Status Damage(const fs::path& path) {
  // Two streams: one that goes back and forth reads its buffer again for each page.
  std::ifstream pages(path, std::ios::binary);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  std::vector<char> page(kPageBytes);
  for (std::streamoff at = 0; pages.read(page.data(), kPageBytes); at += kPageBytes) {
    if (at == 0 || std::ranges::all_of(page, [](char c) { return c == 0; })) continue;
    file.seekp(at + 1).put(static_cast<char>(page[1] ^ 0x10));
  }
  if (pages.eof() && file.flush()) return {};
  return Fail(Code::kIoError, "cannot change {}", path.string());
}

}  // namespace

// Checks that a second engine takes the prompt from the disk of the first one.
Status Restarted(Lab& lab, Check& check) {
  KV_ASSIGN(const TemporaryFolder folder, TemporaryFolder::Make());
  KV_ASSIGN(const EngineOptions options, OnDisk(lab, folder));
  KV_TRY(Store(lab, options, {"default"}));
  KV_ASSIGN(const auto engine, lab.Load(options));
  KV_ASSIGN(const Generated generated, RunAlone(*engine, lab.Ask(lab.prompt())));
  check.Compare(lab.reference(), generated, "restarted");
  ExpectFromDisk(check, lab, generated, "restarted");
  KV_ASSIGN(const auto empty, lab.Load(lab.options()));
  KV_ASSIGN(const Generated cold, RunAlone(*empty, lab.Ask(lab.prompt())));
  check.Compare(lab.reference(), cold, "restarted without a disk");
  check.Expect(cold.receipt.cached_tokens() == 0, "without a disk: the cache is not empty");
  return {};
}

// Checks requests that ask for one prompt while it is loaded, beside another prompt that is
// computed.
Status Loading(Lab& lab, Check& check) {
  KV_ASSIGN(const TemporaryFolder folder, TemporaryFolder::Make());
  KV_ASSIGN(const EngineOptions options, OnDisk(lab, folder));
  KV_TRY(Store(lab, options, {"default"}));
  KV_ASSIGN(const auto engine, lab.Load(options));
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 3; ++i) requests.push_back(lab.Ask(lab.prompt()));
  requests[1].chunk_tokens = 3;
  requests.push_back(lab.Ask(lab.RandomTokens(lab.prompt().size())));
  KV_ASSIGN(const std::vector<Generated> generated, RunTogether(*engine, std::move(requests)));
  uint32_t from_disk = 0;
  for (size_t i = 0; i < 3; ++i) {
    check.Compare(lab.reference(), generated[i], fmt::format("loading, request {}", i));
    from_disk += generated[i].receipt.reused_disk;
  }
  check.Expect(from_disk >= WholeBlocks(lab) || WholeBlocks(lab) == 0,
               fmt::format("loading: {} tokens from the disk", from_disk));
  return {};
}

// Checks that nothing is served from a disk that is damaged in every page, or whose records lie in
// other slots.
Status Damaged(Lab& lab, Check& check) {
  for (const bool moved : {false, true}) {
    KV_ASSIGN(const TemporaryFolder folder, TemporaryFolder::Make());
    KV_ASSIGN(const EngineOptions options, OnDisk(lab, folder));
    KV_TRY(Store(lab, options, {"default"}));
    if (moved) {
      for (const fs::path& path : Segments(folder)) KV_TRY(MoveRecords(path));
    }
    KV_ASSIGN(const auto engine, lab.Load(options));
    if (!moved) {
      for (const fs::path& path : Segments(folder)) KV_TRY(Damage(path));
    }
    KV_ASSIGN(const Generated generated, RunAlone(*engine, lab.Ask(lab.prompt())));
    const char* what = moved ? "moved to another slot" : "damaged";
    check.Compare(lab.reference(), generated, what);
    check.Expect(generated.receipt.reused_disk == 0,
                 fmt::format("{}: {} tokens from the disk", what, generated.receipt.reused_disk));
  }
  return {};
}

// Puts the segments of a copy back in their places.
Status PutBack(const fs::path& copy, const TemporaryFolder& folder) {
  std::error_code error;
  for (const fs::path& path : Segments(folder)) {
    const fs::path from = copy / fs::relative(path, folder.path() / "kv", error);
    if (!error) fs::copy_file(from, path, fs::copy_options::overwrite_existing, error);
    if (error) return Fail(Code::kIoError, "cannot copy {}: {}", from.string(), error.message());
  }
  return {};
}

// Checks that what a tenant erased is not found after a restart, even where its records come back
// from a copy of the disk, and that another tenant's records are found.
Status Erased(Lab& lab, Check& check) {
  KV_ASSIGN(const TemporaryFolder folder, TemporaryFolder::Make());
  KV_ASSIGN(const EngineOptions options, OnDisk(lab, folder));
  KV_TRY(Store(lab, options, {"default", "another"}));
  const fs::path copy = folder.path() / "copy";
  std::error_code error;
  fs::copy(folder.path() / "kv", copy, fs::copy_options::recursive, error);
  if (error) return Fail(Code::kIoError, "cannot copy the disk: {}", error.message());
  {
    KV_ASSIGN(const auto engine, lab.Load(options));
    engine->Erase("default");
  }
  KV_TRY(PutBack(copy, folder));
  KV_ASSIGN(const auto engine, lab.Load(options));
  for (const char* tenant : {"default", "another"}) {
    GenerateRequest request = lab.Ask(lab.prompt());
    request.tenant = tenant;
    KV_ASSIGN(const Generated generated, RunAlone(*engine, std::move(request)));
    check.Compare(lab.reference(), generated, fmt::format("erased, tenant {}", tenant));
    if (tenant == std::string_view("another")) {
      ExpectFromDisk(check, lab, generated, "another tenant's erasure");
    } else {
      check.Expect(generated.receipt.cached_tokens() == 0, "erased: the disk still has it");
    }
  }
  return {};
}

namespace {

Status Forget(Engine& engine, Lab& lab, uint32_t first, uint32_t last) {
  ForgetRequest request{.owner = "default",
                        .cache_salt = {},
                        .ids = lab.prompt(),
                        .first = first,
                        .last = last,
                        .adapters = lab.reference().receipt.adapter_digest,
                        .kept = {}};
  const auto told = std::make_shared<std::promise<Erasure>>();
  engine.Forget(std::move(request), [told](const Erasure& erasure) { told->set_value(erasure); });
  const Erasure erasure = told->get_future().get();
  if (erasure.error) return tl::unexpected(*erasure.error);
  return {};
}

}  // namespace

// Forgets a text in the second half of a prompt. Checks that what has all of it is neither in
// memory nor on the disk from there on, no matter which request computed it, that the prompt then
// has the bits of a fresh one, and that another prompt, which leaves it within that text, stays.
Status Forgotten(Lab& lab, Check& check) {
  KV_ASSIGN(const TemporaryFolder folder, TemporaryFolder::Make());
  KV_ASSIGN(const EngineOptions options, OnDisk(lab, folder));
  const auto first = static_cast<uint32_t>(lab.prompt().size() / 2);
  const auto last = static_cast<uint32_t>((first + lab.prompt().size()) / 2);
  const auto vocab = static_cast<TokenId>(lab.engine().card().vocab_size);
  const auto leaving_at = [&](uint32_t token) {
    std::vector<TokenId> ids = lab.RandomTokens(lab.prompt().size());
    std::copy_n(lab.prompt().begin(), token, ids.begin());
    ids[token] = (lab.prompt()[token] + 1) % vocab;
    return ids;
  };
  const std::vector<TokenId> other = leaving_at(last), goes_on = leaving_at(last + 1);
  KV_ASSIGN(const Generated want_other, lab.Cold(lab.engine(), other));
  KV_ASSIGN(const Generated want_goes_on, lab.Cold(lab.engine(), goes_on));
  const auto ask_again = [&](Engine& engine, const std::string& where) -> Status {
    for (const auto* ids : {&lab.prompt(), &goes_on}) {
      KV_ASSIGN(const Generated again, RunAlone(engine, lab.Ask(*ids)));
      check.Compare(ids == &goes_on ? want_goes_on : lab.reference(), again, "forgotten, " + where);
      check.Expect(again.receipt.cached_tokens() <= last,
                   fmt::format("forgotten, {}: {} tokens reused, at most {} are left", where,
                               again.receipt.cached_tokens(), last));
      KV_TRY(Forget(engine, lab, first, last));
    }
    return {};
  };
  {
    KV_ASSIGN(const auto engine, lab.Load(options));
    KV_TRY(RunAlone(*engine, lab.Ask(lab.prompt())));
    KV_TRY(RunAlone(*engine, lab.Ask(other)));
    KV_TRY(RunAlone(*engine, lab.Ask(goes_on)));
    KV_TRY(Flush(*engine));
    const uint64_t cached_before = engine->Stats().cached_tokens;
    KV_TRY(Forget(*engine, lab, first, last));
    check.Expect(engine->Stats().cached_tokens < cached_before, "forgotten: the index has it all");
    // Among them: the bytes of the forgotten blocks are zeros. With an injected fault they abort.
    if (FaultActive(Fault::kNone)) engine->CheckInvariants();
    KV_ASSIGN(const Generated kept, RunAlone(*engine, lab.Ask(other)));
    check.Compare(want_other, kept, "kept beside a forgotten one");
    check.Expect(kept.receipt.computed == 1,
                 fmt::format("kept beside a forgotten one: {} tokens computed, not 1",
                             kept.receipt.computed));
    KV_TRY(ask_again(*engine, "in memory"));
    KV_TRY(RunAlone(*engine, lab.Ask(lab.prompt())));
    KV_TRY(RunAlone(*engine, lab.Ask(goes_on)));
    KV_TRY(Flush(*engine));
    KV_TRY(Forget(*engine, lab, first, last));
  }
  KV_ASSIGN(const auto engine, lab.Load(options));
  KV_TRY(ask_again(*engine, "after a restart"));
  KV_ASSIGN(const Generated restarted, RunAlone(*engine, lab.Ask(other)));
  check.Compare(want_other, restarted, "kept beside a forgotten one, after a restart");
  return {};
}

}  // namespace kvasir::cli
