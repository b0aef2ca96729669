// Sessions in the file that a newer version wrote.
#include <gtest/gtest.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/secret_place.h"
#include "session/sealed_rows.h"
#include "session/session_folder_for_test.h"
#include "tier/storage.h"

namespace kvasir {
namespace {

TEST_F(SessionFolderTest, ARowOfANewerVersionSaysSoAndStays) {
  std::string newer, good;
  {
    const auto store = OpenStore();
    newer = store->Create("t", FreshState(*store))->id;
    good = store->Create("t", FreshState(*store))->id;
  }
  const SealedRowsOptions rows_options{.folder = options_.folder,
                                       .cap_bytes = options_.cap_bytes,
                                       .secret = *SecretAt(options_.secret)};
  RealStorage storage;
  std::vector<std::byte> written;
  {
    const auto rows = *SealedRows::Open(rows_options, storage);
    written = *rows->Get(SessionOwnerOf("t"), newer);
    std::string json(reinterpret_cast<const char*>(written.data()), written.size());
    const std::string version = "\"kvasir_session\":1";
    ASSERT_EQ(json.find(version), 1u);
    json.replace(1, version.size(), "\"kvasir_session\":12,\"something\":[1]");
    written.assign(std::as_bytes(std::span(json)).begin(), std::as_bytes(std::span(json)).end());
    ASSERT_TRUE(
        rows->Put(SessionOwnerOf("t"), newer, 2, 1'800'000'000, written, SealedRows::Old::kStays));
  }
  {
    const auto store = OpenStore();
    for (const Error& error : {store->Find("t", newer).error(),
                               store->file()->ReadHead(SessionOwnerOf("t"), newer).error()}) {
      EXPECT_EQ(error.code, Code::kUnsupported);
      EXPECT_EQ(error.message, "the session " + newer +
                                   " is of version 12 of its format, which a newer Kvasir wrote; "
                                   "this one reads version 1: it stays as it is, and that one or "
                                   "a newer one opens it");
    }
    EXPECT_TRUE(store->Find("t", good));
    const auto page = *store->List("t", std::nullopt, 10);
    EXPECT_EQ(page.entries.size(), 1u);
    EXPECT_EQ(page.newer, 1u);
    EXPECT_EQ(page.damaged, 0u);
    EXPECT_EQ(store->List("other", std::nullopt, 10)->newer, 0u);
  }
  const auto rows = *SealedRows::Open(rows_options, storage);
  EXPECT_EQ(*rows->Get(SessionOwnerOf("t"), newer), written);
}

}  // namespace
}  // namespace kvasir
