// The page at `/` for browsers: the files of src/server/page.
#pragma once

#include <string_view>

namespace kvasir {

extern const std::string_view kPageHtml, kPageCss, kPageJs, kPageCacheJs, kPageMarkdownJs,
    kPagePartsJs, kPageReceiptsJs, kPageSvg;

}  // namespace kvasir
