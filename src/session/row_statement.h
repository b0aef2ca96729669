// RowStatement: a statement of SQLite for the length of a scope.
#pragma once

#include <sqlite3.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvasir {

// A prepared statement. Its text and blob arguments must outlive it.
class RowStatement {
 public:
  RowStatement(sqlite3* database, const char* sql) {
    sqlite3_prepare_v2(database, sql, -1, &statement_, nullptr);
  }
  ~RowStatement() { sqlite3_finalize(statement_); }
  RowStatement(const RowStatement&) = delete;
  RowStatement& operator=(const RowStatement&) = delete;

  RowStatement& Bind(int64_t value) {
    sqlite3_bind_int64(statement_, ++bound_, value);
    return *this;
  }
  RowStatement& Bind(std::string_view text) {
    sqlite3_bind_text(statement_, ++bound_, text.data(), static_cast<int>(text.size()),
                      SQLITE_STATIC);
    return *this;
  }
  RowStatement& Bind(std::span<const std::byte> blob) {
    sqlite3_bind_blob64(statement_, ++bound_, blob.data(), blob.size(), SQLITE_STATIC);
    return *this;
  }
  int Step() { return statement_ == nullptr ? SQLITE_ERROR : sqlite3_step(statement_); }
  int64_t Int(int column) { return sqlite3_column_int64(statement_, column); }
  std::string Text(int column) {
    const auto bytes = Blob(column);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::span<const std::byte> Blob(int column) {
    const auto* bytes = static_cast<const std::byte*>(sqlite3_column_blob(statement_, column));
    return {bytes, static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
  }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
};

}  // namespace kvasir
