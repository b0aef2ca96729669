#include "server/served_model.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/routes_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

class ServedModelTest : public testing::Test {
 protected:
  FakeEngine engine_{nullptr, nullptr};
};

TEST_F(ServedModelTest, AnOwnTemplateReplacesTheModels) {
  ServerOptions options;
  options.chat_template = "{{ messages[0].content }}!";
  const auto model = ServedModel::Make(options, engine_);
  ASSERT_TRUE(model) << model.error().message;
  ASSERT_NE(model->view().chat_template, nullptr);
  EXPECT_EQ(model->view().chat_template->source(), *options.chat_template);
  options.chat_template = "{% if %}";
  EXPECT_EQ(ServedModel::Make(options, engine_).error().code, Code::kInvalidArgument);
}

TEST_F(ServedModelTest, TheOptionsComeBeforeTheModelsDefaults) {
  ServerOptions options;
  options.aliases = {"a", "*", "b"};
  options.defaults.max_tokens = 7;
  options.defaults.sampling.temperature = 0.5f;
  options.chat_template_kwargs = R"({"x": 1})";
  const auto model = ServedModel::Make(options, engine_);
  ASSERT_TRUE(model) << model.error().message;
  const ModelView& view = model->view();
  EXPECT_EQ(view.names, (std::vector<std::string>{"a", "b", "fake"}));
  EXPECT_TRUE(view.takes_any_name);
  EXPECT_EQ(view.max_tokens, 7u);
  EXPECT_EQ(view.sampling.temperature, 0.5f);
  EXPECT_TRUE(view.template_variables.is_object());
  EXPECT_EQ(view.num_slots, 0u);
  options.chat_template_kwargs = "[]";
  EXPECT_EQ(ServedModel::Make(options, engine_).error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvasir
