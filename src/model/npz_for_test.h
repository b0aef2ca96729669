// Reads arrays of a golden.npz: a zip whose entries are stored as they are.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace kvasir {

struct NpyArray {
  std::vector<uint64_t> shape;
  std::vector<float> numbers;
};

template <typename T>
T LoadAt(const std::string& bytes, size_t at) {
  T value;
  EXPECT_LE(at + sizeof(T), bytes.size());
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

// Parses "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 5), }" and the numbers.
inline NpyArray ParseNpy(const std::string& bytes) {
  NpyArray array;
  const size_t header_bytes = LoadAt<uint16_t>(bytes, 8);
  const std::string header = bytes.substr(10, header_bytes);
  EXPECT_NE(header.find("'<f4', 'fortran_order': False"), header.npos) << header;
  uint64_t count = 1;
  for (const char* at = header.c_str() + header.find('(') + 1; *at >= '0' && *at <= '9';) {
    char* end = nullptr;
    array.shape.push_back(std::strtoull(at, &end, 10));
    count *= array.shape.back();
    at = end + (std::strncmp(end, ", ", 2) == 0 ? 2 : 0);
  }
  array.numbers.resize(count);
  EXPECT_EQ(bytes.size(), 10 + header_bytes + count * sizeof(float));
  std::memcpy(array.numbers.data(), bytes.data() + 10 + header_bytes, count * sizeof(float));
  return array;
}

inline std::map<std::string, NpyArray> ReadNpz(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::map<std::string, NpyArray> arrays;
  for (size_t at = 0; bytes.compare(at, 4, "PK\x03\x04") == 0;) {
    const size_t name_bytes = LoadAt<uint16_t>(bytes, at + 26);
    const size_t extra_bytes = LoadAt<uint16_t>(bytes, at + 28);
    const std::string name = bytes.substr(at + 30, name_bytes);
    const size_t data = at + 30 + name_bytes + extra_bytes;
    uint64_t size = LoadAt<uint32_t>(bytes, at + 18);
    if (size == UINT32_MAX) size = LoadAt<uint64_t>(bytes, at + 30 + name_bytes + 4);  // zip64
    arrays[name.substr(0, name.size() - 4)] = ParseNpy(bytes.substr(data, size));
    at = data + size;
  }
  EXPECT_FALSE(arrays.empty()) << path;
  return arrays;
}

}  // namespace kvasir
