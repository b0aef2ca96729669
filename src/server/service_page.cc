// The page for browsers.
#include "server/page.h"
#include "server/service_routes.h"

namespace kvasir {
namespace {

HttpResponse FileResponse(std::string_view text, std::string content_type) {
  HttpResponse response;
  response.content_type = std::move(content_type);
  response.body = text;
  // Nothing from elsewhere, no script in the text, and no other page around this one.
  response.headers = {{"Content-Security-Policy",
                       "default-src 'self'; base-uri 'none'; form-action 'self'; "
                       "frame-ancestors 'none'"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"}};
  return response;
}

}  // namespace

Outcome Service::Page(const Call&) { return FileResponse(kPageHtml, "text/html; charset=utf-8"); }

Outcome Service::PageCss(const Call&) {
  if (!options_.has_page) return ErrorResponse(NotFound("not found"));
  return FileResponse(kPageCss, "text/css; charset=utf-8");
}

Outcome Service::PageJs(const Call&) {
  if (!options_.has_page) return ErrorResponse(NotFound("not found"));
  return FileResponse(kPageJs, "text/javascript; charset=utf-8");
}

Outcome Service::PageSvg(const Call&) {
  if (!options_.has_page) return ErrorResponse(NotFound("not found"));
  return FileResponse(kPageSvg, "image/svg+xml");
}

}  // namespace kvasir
