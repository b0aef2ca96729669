#include "server/slot_routes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "server/routes_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

class SlotRoutesTest : public RoutesTest {
 protected:
  void AddRoutes() override {
    AddSlotRoutes(
        {server_->generations, server_->keys, server_->sessions, server_->texts, server_->slots},
        &server_->table);
  }
};

TEST_F(SlotRoutesTest, SlotsShowWhatRuns) {
  engine_->sequences = {{.tenant = "default",
                         .state = "decode",
                         .tokens = 9,
                         .computed = 8,
                         .prompt_tokens = 7,
                         .cached_tokens = 4},
                        {.tenant = "default", .state = "waiting", .tokens = 5, .prompt_tokens = 5},
                        {.tenant = "other", .state = "decode", .tokens = 3, .prompt_tokens = 2}};
  const json slots = json::parse(Ask("GET", "/slots").body);
  ASSERT_EQ(slots.size(), 3u);
  EXPECT_EQ(slots[0], json::parse(R"({"id":0,"is_processing":true,"n_ctx":64,"n_prompt_tokens":7,
      "n_cached_tokens":4,"n_decoded":2})"));
  for (int i = 1; i < 3; ++i) {
    EXPECT_EQ(slots[i], (json{{"id", i},
                              {"is_processing", false},
                              {"n_ctx", 64},
                              {"n_prompt_tokens", 0},
                              {"n_cached_tokens", 0},
                              {"n_decoded", 0}}));
  }
}

TEST_F(SlotRoutesTest, ActionsOnSlotsNameWhatReplacesThem) {
  for (const auto& [action, instead] : {std::pair<const char*, const char*>{"save", "--disk"},
                                        {"restore", "by itself"},
                                        {"erase", "DELETE /v1/cache"}}) {
    const HttpResponse refused =
        Ask("POST", std::string("/slots/0?action=") + action, {{"filename", "x"}});
    EXPECT_EQ(refused.status, 501);
    const json error = json::parse(refused.body)["error"];
    EXPECT_EQ(error["type"], "not_supported_error");
    EXPECT_NE(error["message"].get<std::string>().find(instead), std::string::npos);
  }
  EXPECT_EQ(Ask("POST", "/slots/0?action=x").status, 400);
}

TEST_F(SlotRoutesTest, ASlotIsSavedRestoredAndErased) {
  const std::filesystem::path folder = testing::TempDir() + "/slot_routes_test";
  std::filesystem::create_directories(folder);
  ServerOptions options;
  options.slot_save_path = folder;
  Restart(options);
  const json file = {{"filename", "f"}};
  EXPECT_EQ(ErrorOf("/slots/1?action=save", file)["param"], "id_slot") << "it has nothing";
  EXPECT_EQ(ErrorOf("/slots/3?action=save", file)["param"], "id_slot") << "there are three";
  server_->slots.Set(1, {.tenant = "default", .space = {}, .ids = {1, 2, 3}}, 0);
  EXPECT_EQ(AskJson("POST", "/slots/1?action=save", file)["n_saved"], 3);
  EXPECT_EQ(ErrorOf("/slots/1?action=save", {{"filename", "../f"}})["param"], "filename");

  EXPECT_EQ(Ask("POST", "/slots/2?action=restore", file).status, 0) << "the engine computes it";
  ASSERT_EQ(engine_->submitted.size(), 1u);
  EXPECT_EQ(engine_->submitted[0].first.prompt, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(engine_->submitted[0].first.max_tokens, 0u);

  EXPECT_EQ(AskJson("POST", "/slots/1?action=erase")["n_erased"], 3);
  ASSERT_EQ(engine_->forgotten.size(), 1u);
  EXPECT_EQ(engine_->forgotten[0].last, 2u);
  EXPECT_EQ(AskJson("POST", "/slots/1?action=erase")["n_erased"], 0);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace kvasir
