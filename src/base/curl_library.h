// CurlLibrary: the functions of libcurl, which what needs one of them first loads.
#pragma once

#include <curl/curl.h>

namespace kvasir {

struct CurlLibrary {
  static constexpr unsigned kLeastVersion = 0x075500;  // 7.85 brought CURLOPT_PROTOCOLS_STR

  decltype(&curl_global_init) global_init;
  decltype(&curl_version_info) version_info;
  decltype(&curl_slist_append) append;
  decltype(&curl_slist_free_all) free_all;
  decltype(&curl_easy_init) easy_init;
  decltype(&curl_easy_setopt) easy_setopt;
  decltype(&curl_easy_perform) easy_perform;
  decltype(&curl_easy_cleanup) easy_cleanup;
  decltype(&curl_easy_strerror) strerror;
  // REQUIRES: has_multi, of all that follow: several transfers at once.
  decltype(&curl_multi_init) multi_init;
  decltype(&curl_multi_setopt) multi_setopt;
  decltype(&curl_multi_add_handle) multi_add_handle;
  decltype(&curl_multi_remove_handle) multi_remove_handle;
  decltype(&curl_multi_perform) multi_perform;
  decltype(&curl_multi_poll) multi_poll;
  decltype(&curl_multi_info_read) multi_info_read;
  decltype(&curl_multi_cleanup) multi_cleanup;
  bool has_multi;

  const curl_version_info_data& version() const { return *version_info(CURLVERSION_NOW); }
  bool is_new_enough() const { return version().version_num >= kLeastVersion; }
};

// Loads the library at the first call, for as long as the process runs: linked, it would bring 29
// libraries and 7 ms into every start of a server that never calls it. Null: it is not installed,
// is not libcurl, or cannot be initialised. It may be of any version. Thread-safe.
const CurlLibrary* LoadCurlLibrary();

}  // namespace kvasir
