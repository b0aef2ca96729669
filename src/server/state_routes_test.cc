#include "server/state_routes.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/routes_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

class StateRoutesTest : public RoutesTest {
 protected:
  void AddRoutes() override {
    AddStateRoutes({server_->keys, server_->sessions, nullptr, [this] { return is_stopping_; }},
                   server_->model.view(), &server_->table);
  }
  bool is_stopping_ = false;
};

TEST_F(StateRoutesTest, ReadyEndsWhenTheModelIsChanged) {
  EXPECT_EQ(Ask("GET", "/ready").status, 200);
  engine_->model_status =
      tl::unexpected(Error{Code::kModelChanged, "/secret/path/model.gguf was written to"});
  const HttpResponse response = Ask("GET", "/ready");
  EXPECT_EQ(response.status, 503);
  EXPECT_NE(response.body.find("\"model_changed\""), std::string::npos) << response.body;
  EXPECT_EQ(response.body.find("/secret/path"), std::string::npos) << response.body;
  EXPECT_EQ(Ask("GET", "/health").status, 200);
}

TEST_F(StateRoutesTest, MetricsHaveEachNameOnce) {
  engine_->stats.decode_rows = 12;
  engine_->stats.decode_steps = 5;
  engine_->stats.reused_pool = 3;
  engine_->stats.reused_partial = 4;
  const std::string text = Ask("GET", "/metrics").body;
  EXPECT_NE(text.find("\nkvasir_mean_decode_batch 2.4"), std::string::npos);
  EXPECT_NE(text.find("\nvllm:prefix_cache_hits_total{model_name=\"fake\",engine=\"0\"} 7\n"),
            std::string::npos);
  EXPECT_NE(text.find("\nkvasir_misses_total{reason=\"diverged\"} 0\n"), std::string::npos);
  EXPECT_EQ(text.find("# TYPE kvasir_blocks "), text.rfind("# TYPE kvasir_blocks "));
}

TEST_F(StateRoutesTest, ReadyEndsWhenTheServerStops) {
  EXPECT_EQ(AskJson("GET", "/ready"), json({{"status", "ready"}, {"model", "fake"}}));
  caller_ = {};
  EXPECT_EQ(AskJson("GET", "/ready"), json({{"status", "ready"}})) << "without a key";
  is_stopping_ = true;
  EXPECT_EQ(Ask("GET", "/ready").status, 503);
  EXPECT_EQ(Ask("GET", "/health").status, 200);
}

TEST_F(StateRoutesTest, PropsHaveWhatClientsRead) {
  const json props = AskJson("GET", "/props");
  EXPECT_EQ(props["default_generation_settings"]["params"]["seed"], 4294967295);
  EXPECT_EQ(props["default_generation_settings"]["params"]["n_predict"], -1);
  EXPECT_EQ(props["total_slots"], 3);
  EXPECT_EQ(props["model_alias"], "fake");
  EXPECT_EQ(props["chat_template"], kTinyTemplate);
}

}  // namespace
}  // namespace kvasir
