#include <fmt/format.h>

#include <cerrno>

#include "base/result.h"
#include "base/system_error.h"
#include "kvasir/session.h"
#include "session/sealed_rows.h"
#include "tier/store_files.h"

namespace kvasir {

Result<std::optional<RowsCheck>> CheckRows(const SealedRowsOptions& options, Storage& storage) {
  {
    const auto root = Own(storage, storage.OpenRoot(options.folder));
    if (!root) return FailErrno(root.error(), "cannot read {}", options.folder);
    const auto facts = storage.FactsOf(root->id(), std::string(kRowsName));
    if (!facts && facts.error() == ENOENT) return std::optional<RowsCheck>();
  }
  RowsCheck check;
  SealedRowsOptions looks = options;
  looks.only_looks = true;
  const auto rows = SealedRows::Open(looks, storage);
  if (!rows && rows.error().code == Code::kUnavailable) {
    check.skipped = rows.error().message;
    return std::optional(std::move(check));
  }
  const auto listed = rows ? (*rows)->List() : tl::unexpected(rows.error());
  if (!listed) {
    check.damaged.push_back(listed.error().message);
    return std::optional(std::move(check));
  }
  for (const RowFacts& facts : *listed) {
    if (facts.owner == Digest{}) {
      ++check.unreadable;
      continue;
    }
    if (!(*rows)->Get(facts.owner, facts.id)) {
      check.damaged.push_back(fmt::format("{}: cannot be unsealed", facts.id));
      continue;
    }
    ++check.rows;
    if (KindOfId(facts.id) == SessionKind::kResponse) ++check.responses;
    check.bytes += facts.bytes;
  }
  return std::optional(std::move(check));
}

}  // namespace kvasir
