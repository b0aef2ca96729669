#include "server/page_routes.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/routes_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

class PageRoutesTest : public RoutesTest {
 protected:
  void AddRoutes() override { AddPageRoutes(server_->options, &server_->table); }
};

TEST_F(PageRoutesTest, BrowsersGetThePageAndItsFiles) {
  HttpRequest request = RequestOf("GET", "/");
  EXPECT_EQ(server_->table.Find(request), nullptr);
  request.accepts_html = true;
  const auto page = std::get<HttpResponse>(Handle(request));
  EXPECT_EQ(page.content_type, "text/html; charset=utf-8");
  EXPECT_NE(page.body.find("page.js"), std::string::npos);
  EXPECT_EQ(Ask("GET", "/page.css").content_type, "text/css; charset=utf-8");
  EXPECT_EQ(Ask("GET", "/page.svg").content_type, "image/svg+xml");
  size_t bytes = page.body.size();
  for (const char* name :
       {".css", ".js", "-cache.js", "-markdown.js", "-parts.js", "-receipts.js", ".svg"}) {
    const HttpResponse file = Ask("GET", std::string("/page") + name);
    EXPECT_EQ(file.status, 200) << name;
    EXPECT_EQ(file.body.find("\n//"), std::string::npos) << name << " still has comments";
    bytes += file.body.size();
  }
  EXPECT_LE(bytes, 60'000u) << "a browser loads all of them";
  ServerOptions options;
  options.has_page = false;
  Restart(options);
  EXPECT_EQ(server_->table.Find(request), nullptr);
  EXPECT_EQ(Ask("GET", "/page.css").status, 404);
}

}  // namespace
}  // namespace kvasir
