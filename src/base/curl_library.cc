#include "base/curl_library.h"

#include <optional>

#include "base/shared_library.h"

namespace kvasir {
namespace {

std::optional<CurlLibrary> FindFunctionsOfCurl() {
  void* const library = LoadSharedLibrary("libcurl.so.4");
  CurlLibrary curl;
  if (!FindFunction(library, "curl_global_init", &curl.global_init) ||
      !FindFunction(library, "curl_version_info", &curl.version_info) ||
      !FindFunction(library, "curl_slist_append", &curl.append) ||
      !FindFunction(library, "curl_slist_free_all", &curl.free_all) ||
      !FindFunction(library, "curl_easy_init", &curl.easy_init) ||
      !FindFunction(library, "curl_easy_setopt", &curl.easy_setopt) ||
      !FindFunction(library, "curl_easy_perform", &curl.easy_perform) ||
      !FindFunction(library, "curl_easy_cleanup", &curl.easy_cleanup) ||
      !FindFunction(library, "curl_easy_strerror", &curl.strerror) ||
      curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
    return std::nullopt;
  }
  curl.has_multi = FindFunction(library, "curl_multi_init", &curl.multi_init) &&
                   FindFunction(library, "curl_multi_setopt", &curl.multi_setopt) &&
                   FindFunction(library, "curl_multi_add_handle", &curl.multi_add_handle) &&
                   FindFunction(library, "curl_multi_remove_handle", &curl.multi_remove_handle) &&
                   FindFunction(library, "curl_multi_perform", &curl.multi_perform) &&
                   FindFunction(library, "curl_multi_poll", &curl.multi_poll) &&
                   FindFunction(library, "curl_multi_info_read", &curl.multi_info_read) &&
                   FindFunction(library, "curl_multi_cleanup", &curl.multi_cleanup);
  return curl;
}

}  // namespace

const CurlLibrary* LoadCurlLibrary() {
  static const std::optional<CurlLibrary> kCurl = FindFunctionsOfCurl();
  return kCurl ? &*kCurl : nullptr;
}

}  // namespace kvasir
