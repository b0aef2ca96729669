// S3Access: how a bucket of S3 is reached.
#pragma once

#include <string>

#include "remote/aws_signature.h"

namespace kvasir {

struct S3Access {
  AwsCredentials credentials = {};
  std::string ca_file = {};  // PEM, of https; "": what libcurl trusts
};

}  // namespace kvasir
