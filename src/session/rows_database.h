// RowsDatabase: the SQLite file of SealedRows: opening it, its errors, its log.
#pragma once

#include <cstdint>
#include <string_view>

#include "session/row_statement.h"
#include "session/rows_room.h"
#include "session/sealed_rows_options.h"
#include "tier/storage.h"

namespace kvasir {

// Thread-compatible. Errors: those of SealedRows.
class RowsDatabase {
 public:
  RowsDatabase(const SealedRowsOptions& options, Storage& storage, RowsRoom& room)
      : options_(options), storage_(storage), room_(room) {}
  ~RowsDatabase();
  RowsDatabase(const RowsDatabase&) = delete;
  RowsDatabase& operator=(const RowsDatabase&) = delete;

  // Opens the file in this folder, which must outlive it; makes the file where it is missing.
  Status Open(FileId root);
  // Closes the file, and gives it and its log other names.
  Status SetAside();
  // Null: it is not open.
  sqlite3* handle() const { return database_; }
  int num_changes() const { return sqlite3_changes(database_); }

  Status Execute(const char* sql);
  Result<uint64_t> Number(const char* sql);  // the one that `sql` selects
  // Returns the error of the last call. `what`: "cannot be read".
  tl::unexpected<Error> Failed(std::string_view what) const;
  // Moves the log into the file and empties it, and gives pages back that nothing needs.
  Status Scrub();
  // Scrubs, if the log is long.
  Status KeepLogShort();

 private:
  Status OpenFile(FileId root, bool* is_new);
  Status CheckWhole(uint64_t bytes);
  Status SetUp(bool is_new);
  Status CheckFormat(uint64_t* num_tables, uint64_t* version);
  Status MakeTables();

  const SealedRowsOptions& options_;
  Storage& storage_;
  RowsRoom& room_;
  FileId root_{};
  sqlite3* database_ = nullptr;
};

}  // namespace kvasir
