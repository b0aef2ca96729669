#include "engine/adapter_store.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "import/importer.h"
#include "import/model_files_for_test.h"
#include "import/tiny_models_for_test.h"
#include "kvasir/engine.h"

namespace kvasir {
namespace {

ModelConfig TinyConfig() {
  auto model = ImportModel(TinyModelPath("tiny-gqa"));
  EXPECT_TRUE(model) << (model ? "" : model.error().text());
  return model->config;
}

class AdapterStoreTest : public testing::Test {
 protected:
  using Names = AdapterStore::Names;

  AdapterStoreTest() : config_(TinyConfig()) {
    options_.max_loaded = 3;
    bytes_ = PackedAdapter::BytesFor(SyntheticLora(config_, 8, 1));
  }
  AdapterStore Make(uint64_t budget_bytes) const {
    return AdapterStore(options_, config_, budget_bytes, {"model"},
                        [](const Digest& adapters, bool is_long) {
                          Identity identity = adapters;
                          identity[0] ^= is_long;
                          return identity;
                        });
  }
  static AdapterSource Source(const std::string& name, uint64_t seed, double scale = 0) {
    return {.path = "", .name = name, .scale = scale, .seed = seed};
  }
  // Writes an adapter of rank 8 with these bytes in all numbers.
  std::string WriteAdapter(char byte) const {
    const uint64_t in = config_.hidden_size, out = config_.num_heads * config_.head_dim;
    const uint64_t a = 8 * in * sizeof(float), b = 8 * out * sizeof(float);
    const std::string name = "base_model.model.model.layers.0.self_attn.q_proj.lora_";
    folder_.Write("adapter_config.json", R"({"peft_type": "LORA", "r": 8, "lora_alpha": 8})");
    folder_.Write(
        "adapter_model.safetensors",
        Safetensors(
            fmt::format(
                R"({{"{0}A.weight":{{"dtype":"F32","shape":[8,{1}],"data_offsets":[0,{2}]}},)"
                R"("{0}B.weight":{{"dtype":"F32","shape":[{3},8],"data_offsets":[{2},{4}]}}}})",
                name, in, a, out, a + b),
            std::string(a + b, byte)));
    return folder_.path().string();
  }
  template <typename T>
  static void ExpectWrong(const Result<T>& result, Code code, const std::string& part) {
    ASSERT_FALSE(result) << part;
    EXPECT_EQ(result.error().code, code) << result.error().text();
    EXPECT_NE(result.error().text().find(part), std::string::npos) << result.error().text();
  }

  ModelConfig config_;
  AdapterOptions options_;
  uint64_t bytes_ = 0;
  TemporaryFolder folder_;
};

TEST_F(AdapterStoreTest, IdsCountUpAndNamesAreFoundOnce) {
  AdapterStore store = Make(10 * bytes_);
  ASSERT_EQ(store.Load(Source("a", 1, 0.5), Names::kMustBeNew)->id, 0u);
  ASSERT_EQ(store.Load(Source("b", 2), Names::kMustBeNew)->id, 1u);
  ExpectWrong(store.Load(Source("a", 3), Names::kMustBeNew), Code::kInvalidArgument,
              "'a' is taken");
  ExpectWrong(store.Load(Source("model", 3), Names::kMayReplace), Code::kInvalidArgument,
              "taken by the model");
  const std::string digest = store.Cards()[0].digest;
  const auto replaced = store.Load(Source("a", 3), Names::kMayReplace);
  ASSERT_TRUE(replaced);
  EXPECT_EQ(replaced->id, 0u);
  EXPECT_NE(replaced->digest, digest) << "other weights under an old name are another adapter";
  ASSERT_TRUE(store.Unload("b"));
  ExpectWrong(store.Unload("b"), Code::kNotFound, "'b'");
  EXPECT_EQ(store.Load(Source("b", 2), Names::kMustBeNew)->id, 2u) << "ids are not used again";
  ASSERT_TRUE(store.Load(Source("c", 4), Names::kMustBeNew));
  ExpectWrong(store.Load(Source("d", 5), Names::kMustBeNew), Code::kInvalidArgument, "--max-loras");
  ExpectWrong(store.Load(Source("default", 5), Names::kMustBeNew), Code::kInvalidArgument,
              "it stands for the model");
}

TEST_F(AdapterStoreTest, PathsThatEndAlikeHaveNamesOfTheirOwn) {
  AdapterStore store = Make(3 * bytes_);
  for (const char* path : {"p/checkpoint-10/", "q/checkpoint-10", "somewhere/model"}) {
    ASSERT_TRUE(store.Load({.path = path, .seed = 1}, Names::kMustBeNew)) << path;
  }
  const std::vector<AdapterCard> cards = store.Cards();
  EXPECT_EQ(cards[0].name, "checkpoint-10");
  EXPECT_EQ(cards[1].name, "q/checkpoint-10");
  EXPECT_EQ(cards[2].name, "somewhere/model") << "the model has the end of it";
  ExpectWrong(store.Load({.path = "q/checkpoint-10", .seed = 1}, Names::kMustBeNew),
              Code::kInvalidArgument, "is taken by an adapter that is loaded");
}

TEST_F(AdapterStoreTest, TheBudgetCountsWhatRequestsStillHave) {
  AdapterStore store = Make(2 * bytes_);
  ASSERT_TRUE(store.Load(Source("a", 1), Names::kMustBeNew));
  ASSERT_TRUE(store.Load(Source("b", 2), Names::kMustBeNew));
  ExpectWrong(store.Load(Source("c", 3), Names::kMustBeNew), Code::kInvalidArgument,
              "--lora-memory");
  EXPECT_EQ(store.Cards().size(), 2u) << "nothing stays half loaded";
  auto set = *store.SetFor(std::vector<AdapterChoice>{{0, 1}});
  ASSERT_TRUE(store.Unload("a"));
  ExpectWrong(store.Load(Source("c", 3), Names::kMustBeNew), Code::kInvalidArgument,
              "--lora-memory");
  EXPECT_EQ(set->applied.front().adapter->bytes(), bytes_);
  set.reset();
  EXPECT_TRUE(store.Load(Source("c", 3), Names::kMustBeNew));
}

TEST_F(AdapterStoreTest, AListIsKnownByItsNumbersAndScales) {
  AdapterStore store = Make(10 * bytes_);
  ASSERT_TRUE(store.Load(Source("a", 1), Names::kMustBeNew));
  ASSERT_TRUE(store.Load(Source("b", 2), Names::kMustBeNew));
  ASSERT_TRUE(store.Load(Source("same as a", 1), Names::kMustBeNew));
  const auto digest = [&](std::vector<AdapterChoice> choices) {
    const auto set = store.SetFor(std::move(choices));
    EXPECT_TRUE(set);
    return *set ? (*set)->digest : Digest{};
  };
  EXPECT_EQ(digest({}), Digest{});
  EXPECT_EQ(digest({{0, 0}}), Digest{}) << "scale 0 drops out";
  EXPECT_EQ(digest({{0, 1}, {1, 0}}), digest({{0, 1}}));
  EXPECT_EQ(digest({{0, 1}, {1, 2}}), digest({{1, 2}, {0, 1}})) << "the order says nothing";
  EXPECT_EQ(digest({{0, 1}}), digest({{2, 1}})) << "nor does the name";
  EXPECT_NE(digest({{0, 1}}), digest({{0, 1}, {2, 1}}));
  EXPECT_NE(digest({{0, 1}}), digest({{0, 0.5}}));
  EXPECT_NE(digest({{0, 1}}), digest({{1, 1}}));
  const auto set = *store.SetFor(std::vector<AdapterChoice>{{1, 2}, {0, 1}});
  EXPECT_EQ(set->identity, set->digest);
  EXPECT_NE(set->long_identity, set->identity);
  EXPECT_LT(set->applied[0].digest, set->applied[1].digest);
  EXPECT_EQ(set->used[0].name, "b");
  EXPECT_EQ(set->used[0].scale, 2);
}

TEST_F(AdapterStoreTest, RequestsThatSayNothingGetTheSetScales) {
  AdapterStore store = Make(10 * bytes_);
  ASSERT_TRUE(store.Load(Source("a", 1, 1), Names::kMustBeNew));
  ASSERT_TRUE(store.Load(Source("b", 2), Names::kMustBeNew));
  EXPECT_EQ((*store.SetFor(std::nullopt))->choices, (std::vector<AdapterChoice>{{0, 1}}));
  const AdapterChoice b[] = {{1, -2}};
  ASSERT_TRUE(store.SetScales(b));
  EXPECT_EQ((*store.SetFor(std::nullopt))->choices, (std::vector<AdapterChoice>{{1, -2}}));
  EXPECT_EQ(store.Cards()[0].scale, 0);
  ASSERT_TRUE(store.SetScales({}));
  EXPECT_EQ(*store.SetFor(std::nullopt), nullptr);
}

TEST_F(AdapterStoreTest, AnAdapterWithoutANameHasThatOfItsFile) {
  AdapterStore store = Make(10 * bytes_);
  for (const auto& [path, name] : {std::pair("/x/epoch.1", "epoch.1"), std::pair("x/a.gguf", "a"),
                                   std::pair("x/epoch.2/", "epoch.2")}) {
    const auto card = store.Load({.path = path, .seed = 1}, Names::kMustBeNew);
    ASSERT_TRUE(card) << card.error().text();
    EXPECT_EQ(card->name, name);
  }
}

TEST_F(AdapterStoreTest, WrongChoicesAndSourcesAreNamed) {
  options_.max_rank = 4;
  AdapterStore strict = Make(10 * bytes_);
  ExpectWrong(strict.Load(Source("a", 1), Names::kMustBeNew), Code::kInvalidArgument,
              "rank of 8 is more than the 4 of --max-lora-rank");
  options_.max_rank = 64;
  AdapterStore store = Make(10 * bytes_);
  ExpectWrong(store.Load(Source("a", 1, 101), Names::kMustBeNew), Code::kInvalidArgument, "101");
  ExpectWrong(store.Load(Source("default", 1), Names::kMustBeNew), Code::kInvalidArgument,
              "stands for the model");
  ExpectWrong(store.Load(Source(std::string(257, 'a'), 1), Names::kMustBeNew),
              Code::kInvalidArgument, "257 bytes");
  ExpectWrong(store.Load({.path = "/no/such", .name = "a"}, Names::kMustBeNew), Code::kNotFound,
              "/no/such");
  ASSERT_TRUE(store.Load(Source("a", 1), Names::kMustBeNew));
  const auto choose = [&](std::vector<AdapterChoice> choices) {
    return store.SetFor(std::move(choices));
  };
  ExpectWrong(choose({{7, 1}}), Code::kInvalidArgument, "lora: no adapter with the id 7");
  ExpectWrong(choose({{0, 1}, {0, 2}}), Code::kInvalidArgument, "the id 0 occurs twice");
  ExpectWrong(choose({{0, 100.5}}), Code::kInvalidArgument, "100.5");
  ExpectWrong(choose({{0, std::numeric_limits<double>::quiet_NaN()}}), Code::kInvalidArgument,
              "scale");
}

// 0xffffffff is a NaN, which reading the numbers would find.
TEST_F(AdapterStoreTest, LimitsAreCheckedBeforeNumbersAreRead) {
  const AdapterSource source{.path = WriteAdapter('\xff'), .name = "a"};
  AdapterStore small = Make(1000);
  ExpectWrong(small.Load(source, Names::kMustBeNew), Code::kInvalidArgument,
              "more than the 1000 of --lora-memory");
  options_.max_rank = 4;
  AdapterStore strict = Make(10 * bytes_);
  ExpectWrong(strict.Load(source, Names::kMustBeNew), Code::kInvalidArgument,
              "rank of 8 is more than the 4 of --max-lora-rank");
  options_.max_rank = 64;
  AdapterStore store = Make(bytes_);
  ExpectWrong(store.Load(source, Names::kMustBeNew), Code::kCorruption, "NaN or infinity");
  ASSERT_TRUE(store.Load(Source("b", 1), Names::kMustBeNew)) << "the memory was given back";
}

TEST_F(AdapterStoreTest, APlanReadsNoNumbersAndItsPeakHasTheRowsOfALoad) {
  EngineOptions options;
  options.model = TinyModelPath("tiny-gqa");
  options.kv_memory_bytes = 16 << 20;
  options.threads = 1;
  const MemoryPlan plain = *Engine::PlanMemory(options);
  EXPECT_TRUE(Engine::CheckAdapterNumbers(options));
  options.adapters.load = {{.path = WriteAdapter('\xff'), .name = "a"}};
  const auto with = Engine::PlanMemory(options);
  ASSERT_TRUE(with) << with.error().text();
  const LoraAdapter opened = *OpenLora(folder_.path(), config_);
  EXPECT_EQ(with->adapter_bytes, PackedAdapter::BytesFor(opened));
  EXPECT_EQ(with->load_peak_bytes - with->total_bytes,
            plain.load_peak_bytes - plain.total_bytes + LoraRowBytes(opened));
  EXPECT_TRUE(Engine::PlanFormats(options));
  const Status numbers = Engine::CheckAdapterNumbers(options);
  ExpectWrong(numbers, Code::kCorruption, "NaN or infinity");
  EXPECT_EQ(numbers.error().field, "lora");
  options.adapters.load[0].path = WriteAdapter('\1');
  EXPECT_TRUE(Engine::CheckAdapterNumbers(options));
}

TEST(Namespaces, AnOwnerHasOneForEachListThatIsLoadedAtOnce) {
  EngineOptions options;
  options.max_tenants = 5;
  options.adapters.max_loaded = 3;
  EXPECT_EQ(IdentitiesFor(options, false), 1u) << "no adapter can be loaded";
  EXPECT_EQ(IdentitiesFor(options, true), 2u) << "longrope has two rotations";
  EXPECT_EQ(NamespacesFor(options, true), 10u);
  options.adapters.loads_later = true;
  EXPECT_EQ(IdentitiesFor(options, false), 4u) << "and the base model's";
  EXPECT_EQ(IdentitiesFor(options, true), 8u);
  EXPECT_EQ(NamespacesFor(options, false), 20u);
  EXPECT_EQ(NamespacesFor(options, true), 40u);
}

// A plan says what a start would say, and packs nothing.
TEST_F(AdapterStoreTest, AStartIsCheckedWithTheWordsOfTheStore) {
  const LoraAdapter adapter = SyntheticLora(config_, 8, 1);
  const auto says = [&](std::vector<AdapterSource> load) {
    options_.load = std::move(load);
    const std::vector<LoraAdapter> read(options_.load.size(), adapter);
    const Status checked = CheckAdapters(options_, read, "model");
    AdapterStore store = Make(AdapterBudget(options_, read));
    const Status added = AddAdapters(options_, read, store);
    EXPECT_EQ(checked.has_value(), added.has_value());
    if (checked) return std::string();
    EXPECT_EQ(checked.error().text(), added.error().text());
    EXPECT_EQ(checked.error().field, "lora");
    return checked.error().message;
  };
  const AdapterSource a = Source("a", 1), b = Source("b", 1);
  EXPECT_EQ(says({}), "");
  EXPECT_EQ(says({a, b}), "");
  EXPECT_NE(says({a, a}).find("is taken by an adapter"), std::string::npos);
  EXPECT_NE(says({Source("model", 1)}).find("taken by the model"), std::string::npos);
  options_.max_loaded = 1;
  EXPECT_NE(says({a, b}).find("--max-loras"), std::string::npos);
  options_.max_loaded = 2;
  options_.memory_bytes = 2 * bytes_;
  EXPECT_EQ(says({a, b}), "");
  options_.memory_bytes = 2 * bytes_ - 1;
  EXPECT_NE(says({a, b}).find("of --lora-memory are taken"), std::string::npos);
  options_.memory_bytes = bytes_ - 1;
  EXPECT_NE(says({a}).find("more than the"), std::string::npos);
  options_.memory_bytes.reset();
  options_.max_rank = 7;
  EXPECT_NE(says({a}).find("--max-lora-rank"), std::string::npos);
}

}  // namespace
}  // namespace kvasir
