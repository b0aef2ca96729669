// A decode step allocates nothing after warm-up: model, cache, scheduler and sampler.
#include <cstdlib>
#include <new>

#include "logit_rows.h"

namespace {

thread_local uint64_t num_allocations = 0;

void* Counted(std::size_t size, std::size_t alignment) {
  ++num_allocations;
  void* p = alignment <= alignof(std::max_align_t)
                ? std::malloc(size)
                : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (p == nullptr) std::abort();
  return p;
}

}  // namespace

void* operator new(std::size_t size) { return Counted(size, 1); }
void* operator new[](std::size_t size) { return Counted(size, 1); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return Counted(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return Counted(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return Counted(size, 1); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return Counted(size, 1); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace kvasir {
namespace {

// Counts allocations of the engine's thread between the events of a choice, from its 4th token to
// the last one.
uint64_t AllocationsOfDecoding(Engine& engine, uint32_t n,
                               std::optional<uint64_t> seed = std::nullopt,
                               std::optional<RetentionChoice> retention = std::nullopt,
                               std::optional<PromptSpans> spans = std::nullopt) {
  // From the first drop on, where tokens are dropped.
  const size_t first = retention ? 150 : 4, last = retention ? 400 : 100;
  GenerateRequest request;
  request.retention = retention;
  request.spans = spans;
  for (TokenId id = 1; id < (spans ? 120 : 40); ++id) request.prompt.push_back(id);
  if (engine.card().decoder_start) request.source = request.prompt;
  // Crosses block edges: Commit publishes, Extend takes and evicts blocks.
  request.max_tokens = static_cast<uint32_t>(last);
  request.ignore_eos = true;
  request.n = n;
  request.sampling.seed = seed;
  request.on_trace = [](const RequestTrace&) {};
  request.sampling.top_k = 40;
  request.sampling.top_p = 0.9f;
  request.sampling.repetition_penalty = 1.1f;
  request.sampling.frequency_penalty = 0.1f;
  std::promise<void> done;
  size_t tokens = 0;
  uint64_t begin = 0, end = 0;
  EXPECT_TRUE(engine.Submit(request, [&](const Event& event) {
    const size_t before = tokens;
    tokens += event.tokens.size();
    if (before < first * n) begin = num_allocations;
    if (tokens <= (last - 1) * n) end = num_allocations;
    if (event.last) done.set_value();
  }));
  done.get_future().wait();
  EXPECT_EQ(tokens, last * n);
  return end - begin;
}

TEST(Allocation, NoneInADecodeStep) {
  for (const char* format : kAllKvFormats) {
    EngineOptions options = TinyOptions();
    options.kv_memory_bytes = 2 << 20;
    options.kv_format = format;
    const auto engine = LoadEngine(options);
    AllocationsOfDecoding(*engine, 1);
    EXPECT_EQ(AllocationsOfDecoding(*engine, 1), 0u) << format;
    EXPECT_EQ(AllocationsOfDecoding(*engine, 4), 0u) << format;
  }
}

TEST(Allocation, NoneWhereTokensAreDropped) {
  const auto engine = LoadEngine(TinyOptions());
  for (const RetentionChoice& choice :
       {RetentionChoice{.policy = Retention::kSinksWindow, .budget = 64},
        RetentionChoice{.policy = Retention::kHeavy, .budget = 64}}) {
    AllocationsOfDecoding(*engine, 1, {}, choice);
    EXPECT_EQ(AllocationsOfDecoding(*engine, 1, {}, choice), 0u) << ToString(choice.policy);
    EXPECT_EQ(AllocationsOfDecoding(*engine, 3, {}, choice), 0u) << ToString(choice.policy);
  }
}

TEST(Allocation, NoneInADecodeStepWithSpans) {
  const auto engine = LoadEngine(TinyOptions());
  const PromptSpans spans{.spans = {{10, 50}, {60, 100}}, .seam = 8, .head = 1};
  AllocationsOfDecoding(*engine, 1, {}, {}, spans);
  EXPECT_EQ(AllocationsOfDecoding(*engine, 1, {}, {}, spans), 0u);
  EXPECT_EQ(AllocationsOfDecoding(*engine, 3, {}, {}, spans), 0u);
  EXPECT_GT(engine->Stats().span_reused_tokens, 0u);
}

TEST(Allocation, NoneInADecodeStepWithShortText) {
  const auto engine = LoadEngine(DemoOptions());
  AllocationsOfDecoding(*engine, 1);
  // Text pieces of this vocabulary are short strings without heap memory; the joined text of an
  // event is reused.
  EXPECT_EQ(AllocationsOfDecoding(*engine, 2), 0u);
}

// The second request drafts what the first one said.
TEST(Allocation, NoneInAStepWithDrafts) {
  EngineOptions options = TinyOptions();
  options.kv_memory_bytes = 2 << 20;
  options.speculate = Speculate::kAlways;
  const auto engine = LoadEngine(options);
  AllocationsOfDecoding(*engine, 1, 5);
  EXPECT_EQ(AllocationsOfDecoding(*engine, 1, 5), 0u);
  EXPECT_EQ(AllocationsOfDecoding(*engine, 4, 5), 0u);
  EXPECT_GT(engine->Stats().drafts.accepted, 100u);
}

TEST(Allocation, NoneInAStepWithADraftModel) {
  EngineOptions options = TinyOptions();
  options.kv_memory_bytes = 2 << 20;
  options.draft_shape = options.shape;
  options.draft_kv_memory_bytes = 2 << 20;
  options.speculate = Speculate::kAlways;
  const auto engine = LoadEngine(options);
  AllocationsOfDecoding(*engine, 1, 5);
  EXPECT_EQ(AllocationsOfDecoding(*engine, 1, 6), 0u);
  EXPECT_GT(engine->Stats().drafts.accepted, 100u);
}

// Blocks are queued, sealed and handed over in decode steps.
TEST(Allocation, NoneInADecodeStepWithADisk) {
  EngineOptions options = TinyOptions();
  options.kv_memory_bytes = 2 << 20;
  options.disk = DiskOptions{.folder = (ScratchDir() / "allocation-disk").string(),
                             .cap_bytes = uint64_t{64} << 20};
  const auto engine = LoadEngine(options);
  AllocationsOfDecoding(*engine, 1);
  EXPECT_EQ(AllocationsOfDecoding(*engine, 1), 0u);
  EXPECT_EQ(AllocationsOfDecoding(*engine, 4), 0u);
  EXPECT_GT(engine->DiskStats()->blocks + engine->DiskStats()->pending_blocks, 0u);
}

TEST(Allocation, NoneInADecodeStepOfExperts) {
  EngineOptions options = DemoOptions();
  options.model = KVASIR_SOURCE_DIR "/tests/data/tiny-qwen3-moe-norm";
  const auto engine = LoadEngine(options);
  AllocationsOfDecoding(*engine, 1);
  EXPECT_EQ(AllocationsOfDecoding(*engine, 1), 0u);
  EXPECT_EQ(AllocationsOfDecoding(*engine, 4), 0u);
}

TEST(Allocation, NoneInADecodeStepWithASource) {
  EngineOptions options = DemoOptions();
  options.model = KVASIR_SOURCE_DIR "/tests/data/m2m100-tiny";
  const auto engine = LoadEngine(options);
  AllocationsOfDecoding(*engine, 1);
  EXPECT_EQ(AllocationsOfDecoding(*engine, 1), 0u);
  EXPECT_EQ(AllocationsOfDecoding(*engine, 4), 0u);
}

// Beams swap places, fork and copy their tails in the memory that they have.
TEST(Allocation, NoneInADecodeStepOfBeams) {
  EngineOptions options = DemoOptions();
  options.model = KVASIR_SOURCE_DIR "/tests/data/m2m100-tiny";
  const auto engine = LoadEngine(options);
  const auto allocations = [&](const std::vector<TokenId>& source) {
    GenerateRequest request = Greedy({2, 5}, 100);
    request.source = source;
    request.ignore_eos = true;
    request.beams = BeamParams{.beams = 5};
    uint64_t begin = 0, end = 0;
    request.on_logits = [&](uint32_t, uint32_t position, std::span<const float>) {
      (position < 4 ? begin : end) = num_allocations;
    };
    EXPECT_FALSE(Ask(*engine, request).error);
    EXPECT_GT(end, begin - 1);
    return end - begin;
  };
  allocations({3, 9, 27});
  EXPECT_EQ(allocations({5, 6, 7, 8}), 0u);
}

}  // namespace
}  // namespace kvasir
