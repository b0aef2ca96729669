// Signs requests for aws_signature_test.py: a line of JSON in, a line of JSON out.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/digest.h"
#include "base/hex.h"
#include "remote/aws_signature.h"

int main() {
  using nlohmann::json;
  for (std::string line; std::getline(std::cin, line);) {
    const json in = json::parse(line);
    kvasir::AwsRequest request{
        .method = in.at("method"), .path = in.at("path"), .payload_sha256 = {}};
    for (const auto& [name, value] : in.at("query").items())
      request.query.emplace_back(name, value);
    for (const auto& [name, value] : in.at("headers").items()) {
      request.headers.emplace_back(name, value);
    }
    request.payload_sha256 = kvasir::ToHex(kvasir::Sha256Of(in.at("body").get<std::string>()));
    const kvasir::AwsHeaders headers =
        kvasir::SignedHeaders(request, {in.at("key_id"), in.at("secret"), in.at("token")},
                              in.at("region").get<std::string>(), kvasir::AwsTime(in.at("time")));
    json out{{"target", kvasir::AwsTarget(request)}, {"headers", json::object()}};
    for (const auto& [name, value] : headers) out["headers"][name] = value;
    std::cout << out.dump() << std::endl;
  }
  return 0;
}
