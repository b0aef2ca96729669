// Signs requests to S3, as AWS Signature Version 4 wants it.
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvasir {

struct AwsCredentials {
  std::string key_id, secret;
  std::string session_token = {};  // "": none
};

// Names in lower case.
using AwsHeaders = std::vector<std::pair<std::string, std::string>>;

struct AwsRequest {
  std::string method;  // "GET"
  std::string path;    // "/bucket/name", not encoded
  // Not encoded; in any order.
  std::vector<std::pair<std::string, std::string>> query = {};
  AwsHeaders headers = {};     // that are signed, `host` too
  std::string payload_sha256;  // in hex
};

// Returns the text with each byte encoded that is not a letter, a digit or one of -._~.
std::string AwsEncoded(std::string_view text);
// Returns the encoded path, and after ? the query, sorted.
std::string AwsTarget(const AwsRequest& request);
// Returns the headers that are to be sent, all of which are signed: the request's, x-amz-date,
// x-amz-content-sha256, x-amz-security-token where there is a token, and authorization.
AwsHeaders SignedHeaders(const AwsRequest& request, const AwsCredentials& credentials,
                         std::string_view region, std::string_view time);
// Returns a time in seconds since 1970 as signatures have it: "20260131T235959Z".
std::string AwsTime(int64_t unix_s);

}  // namespace kvasir
