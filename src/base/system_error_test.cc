#include "base/system_error.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace kvasir {
namespace {

TEST(SystemError, SaysWhatTheCallerDoesNext) {
  EXPECT_EQ(CodeOfErrno(ENOENT), Code::kNotFound);
  EXPECT_EQ(CodeOfErrno(ENOTDIR), Code::kNotFound);
  EXPECT_EQ(CodeOfErrno(EACCES), Code::kPermissionDenied);
  EXPECT_EQ(CodeOfErrno(EROFS), Code::kPermissionDenied);
  EXPECT_EQ(CodeOfErrno(ENOSPC), Code::kExhausted);
  EXPECT_EQ(CodeOfErrno(EDQUOT), Code::kExhausted);
  EXPECT_EQ(CodeOfErrno(ELOOP), Code::kInvalidArgument);
  EXPECT_EQ(CodeOfErrno(EIO), Code::kIoError);
  EXPECT_EQ(CodeOfErrno(EMFILE), Code::kIoError);
}

TEST(SystemError, EndsWithTheSystemsWords) {
  const Error error = FailErrno(ENOSPC, "{}: cannot {}", "a file", "write").value();
  EXPECT_EQ(error.code, Code::kExhausted);
  EXPECT_EQ(error.message, "a file: cannot write: No space left on device");
}

}  // namespace
}  // namespace kvasir
