// Weights in several files, through the importer.
#include "import/handmade_model_for_test.h"

namespace kvasir {
namespace {

class Shards : public testing::Test {
 protected:
  Result<ImportedModel> ImportWith(const std::string& index) {
    folder_.Write("config.json", std::string(kConfig) + "}");
    folder_.Write("model.safetensors.index.json", index);
    return ImportModel(folder_.path());
  }
  std::string Index(const std::string& shard_of_norm) {
    std::string map;
    for (const auto& [name, tensor] : Whole(false)) {
      map += (map.empty() ? "\"" : ",\"") + name + "\":\"" +
             (name == "model.norm.weight" ? shard_of_norm : "a.safetensors") + "\"";
    }
    return R"({"metadata": {}, "weight_map": {)" + map + "}}";
  }
  TemporaryFolder folder_;
};

TEST_F(Shards, AreReadFromTheFilesThatTheIndexNames) {
  Tensors a = Whole(false);
  const Tensors norm = {{"model.norm.weight", a.at("model.norm.weight")}};
  a.erase("model.norm.weight");
  folder_.Write("sub/b.safetensors", Pack(norm, 'b'));
  folder_.Write("a.safetensors", Pack(a, 'a'));
  const auto m = ImportWith(Index("sub/b.safetensors"));
  ASSERT_TRUE(m) << m.error().message;
  EXPECT_EQ(m->final_norm.data[0], std::byte{'b'});
  EXPECT_EQ(m->mapped_files.size(), 2u);
}

TEST_F(Shards, NoTensorIsInTwoShards) {
  // Else the index alone would say which one counts, and no digest of the weights covers it.
  const Tensors a = Whole(false);
  const Tensors norm = {{"model.norm.weight", a.at("model.norm.weight")}};
  folder_.Write("b.safetensors", Pack(norm, 'b'));
  folder_.Write("a.safetensors", Pack(a, 'a'));
  ExpectError(ImportWith(Index("b.safetensors")), Code::kCorruption,
              {"'model.norm.weight' is in a.safetensors", "it is in b.safetensors"});
}

TEST_F(Shards, NoTensorIsLeftOutByTheIndex) {
  Tensors more = Whole(false);
  more["vision.weight"] = {"F32", {2, 2}};
  folder_.Write("a.safetensors", Pack(more));
  ExpectError(ImportWith(Index("a.safetensors")), Code::kCorruption,
              {"'vision.weight' is in a.safetensors", "does not name it"});
}

TEST_F(Shards, StayInTheFolder) {
  folder_.Write("a.safetensors", Pack(Whole(false)));
  const std::string outside = (folder_.path() / "a.safetensors").string();
  for (const std::string& shard :
       {std::string("../x.safetensors"), std::string("sub/../../x"), std::string(".."),
        std::string(), outside, std::string("a\\u0000.safetensors"), std::string("a.gguf")}) {
    ExpectError(ImportWith(Index(shard)), Code::kCorruption, {"model.norm.weight", "same folder"});
  }
}

TEST_F(Shards, AMissingFileOrTensorIsNamed) {
  Tensors some = Whole(false);
  some.erase("model.norm.weight");
  folder_.Write("a.safetensors", Pack(some));
  ExpectError(ImportWith(Index("b.safetensors")), Code::kNotFound, {"b.safetensors"});
  ExpectError(ImportWith(Index("a.safetensors")), Code::kNotFound,
              {"model.norm.weight", "a.safetensors", "index"});
}

TEST_F(Shards, AMalformedIndexIsRefused) {
  ExpectError(ImportWith("{"), Code::kCorruption, {"index.json", "not valid JSON"});
  ExpectError(ImportWith("[]"), Code::kCorruption, {"index.json", "not a JSON object"});
  ExpectError(ImportWith(R"({"weight_map": []})"), Code::kCorruption, {"weight_map"});
  ExpectError(ImportWith(R"({"weight_map": {"w": 3}})"), Code::kCorruption, {"'w'"});
  ExpectError(ImportWith(R"({"weight_map": {}})"), Code::kNotFound, {"12 of the tensors"});
}

}  // namespace
}  // namespace kvasir
