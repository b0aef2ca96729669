#include "base/system_error.h"

#include <cerrno>

namespace kvasir {

Code CodeOfErrno(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return Code::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
      return Code::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
      return Code::kExhausted;
    case ENAMETOOLONG:
    case ELOOP:
      return Code::kInvalidArgument;
    default:
      return Code::kIoError;
  }
}

}  // namespace kvasir
