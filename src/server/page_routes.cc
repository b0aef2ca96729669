#include "server/page_routes.h"

#include <string>
#include <utility>

#include "http/errors.h"
#include "server/page.h"

namespace kvasir {
namespace {

HttpResponse FileResponse(std::string_view text, std::string content_type) {
  HttpResponse response;
  response.content_type = std::move(content_type);
  response.body = text;
  // Nothing from elsewhere, no script in the text, no text as HTML, no other page around this one.
  response.headers = {{"Content-Security-Policy",
                       "default-src 'self'; base-uri 'none'; form-action 'self'; "
                       "frame-ancestors 'none'; require-trusted-types-for 'script'"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"}};
  return response;
}

struct PageFile {
  const char* path;
  const std::string_view& text;  // not yet there when this table is
  const char* media_type;
  bool is_text = true;
  const char* summary = "A part of the page at / for browsers.";
};

const PageFile kPageFiles[] = {
    {"/page.css", kPageCss, "text/css", true, "How the page at / for browsers looks."},
    {"/page.js", kPageJs, "text/javascript", true, "What the page at / for browsers does."},
    {"/page-cache.js", kPageCacheJs, "text/javascript"},
    {"/page-markdown.js", kPageMarkdownJs, "text/javascript"},
    {"/page-parts.js", kPagePartsJs, "text/javascript"},
    {"/page-receipts.js", kPageReceiptsJs, "text/javascript"},
    {"/page.svg", kPageSvg, "image/svg+xml", false, "The icon of the page at / for browsers."},
};

}  // namespace

void AddPageRoutes(const ServerOptions& options, RouteTable* table) {
  if (options.has_page) {
    table->Add({.path = "/",
                .method = "GET",
                .handler = [](const Call&) -> Outcome {
                  return FileResponse(kPageHtml, "text/html; charset=utf-8");
                },
                .access = Access::kOpen,
                .is_page = true});
  }
  for (const PageFile& file : kPageFiles) {
    const auto handler = [&file, has_page = options.has_page](const Call&) -> Outcome {
      if (!has_page) return ErrorResponse(NotFound("not found"));
      const std::string charset = file.is_text ? "; charset=utf-8" : "";
      return FileResponse(file.text, file.media_type + charset);
    };
    table->Add({.path = file.path,
                .method = "GET",
                .handler = handler,
                .access = Access::kOpen,
                .description = {.summary = file.summary, .content_type = file.media_type}});
  }
}

}  // namespace kvasir
