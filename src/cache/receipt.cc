#include "kvasir/receipt.h"

namespace kvasir {

const char* ToString(MissReason reason) {
  switch (reason) {
    case MissReason::kCold:
      return "cold";
    case MissReason::kDiverged:
      return "diverged";
    case MissReason::kEvicted:
      return "evicted";
    case MissReason::kIdentityChanged:
      return "identity_changed";
    case MissReason::kDisabled:
      return "disabled";
    case MissReason::kWindow:
      return "window";
    case MissReason::kRopeChanged:
      return "rope_changed";
    case MissReason::kPoolFull:
      return "pool_full";
    case MissReason::kOvertaken:
      return "overtaken";
    case MissReason::kUnreadable:
      return "unreadable";
    case MissReason::kTemplateRewrote:
      return "template_rewrote";
    case MissReason::kRetokenized:
      return "retokenized";
  }
  return "unknown";
}

}  // namespace kvasir
