#include "server/translation_routes.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/routes_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

class TranslationRoutesTest : public RoutesTest {
 protected:
  void AddRoutes() override {
    ASSERT_TRUE(AddTranslationRoutes(*engine_, server_->generations, &server_->table));
  }
  void MakeTranslator() {
    Make({}, LanguagesTokenizerJson());
    engine_->mutable_card().decoder_start = 257;
    Restart({});
  }
};

TEST_F(TranslationRoutesTest, RowsSayThatTheyNeedATranslator) {
  for (const Route& route : server_->table.all()) {
    EXPECT_EQ(route.for_model, Route::kTranslator) << route.path;
  }
  const Route* libre = server_->table.FindPath("/translate");
  ASSERT_NE(libre, nullptr);
  EXPECT_EQ(libre->errors, &kPlainErrors);
  EXPECT_EQ(libre->key_in_body(R"({"api_key":"k"})", "application/json"), "k");
}

TEST_F(TranslationRoutesTest, BothFormsStartATranslation) {
  MakeTranslator();
  const json languages = AskJson("GET", "/languages");
  ASSERT_EQ(languages.size(), 2u);
  EXPECT_EQ(languages[0]["targets"].size(), 2u);
  EXPECT_EQ(Start("/v1/translations", {{"text", "a"}, {"source", "en"}, {"target", "fr"}})
                .requests.size(),
            1u);
  EXPECT_EQ(
      Start("/translate", {{"q", {"a", "b"}}, {"source", "en"}, {"target", "fr"}}).requests.size(),
      2u);
  EXPECT_EQ(ErrorOf("/translate", {{"q", "a"}, {"source", "en"}})["param"], "target");
  EXPECT_EQ(AskJson("POST", "/translate", {{"q", ""}, {"source", "en"}, {"target", "fr"}}),
            json({{"translatedText", ""}}))
      << "without the engine";
}

}  // namespace
}  // namespace kvasir
