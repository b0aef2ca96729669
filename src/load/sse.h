// SseReader: the events of a stream (text/event-stream), from pieces of any size.
#pragma once

#include <string>
#include <string_view>

namespace kvasir::load {

// One thread. Keeps at most one unfinished line.
class SseReader {
 public:
  // Calls on_data(std::string_view) for the value of each complete `data:` line; comments and other
  // fields say nothing here.
  template <typename OnData>
  void Feed(std::string_view bytes, OnData&& on_data) {
    rest_ += bytes;
    size_t begin = 0;
    for (size_t end; (end = rest_.find('\n', begin)) != rest_.npos; begin = end + 1) {
      std::string_view line = std::string_view(rest_).substr(begin, end - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.starts_with("data:")) continue;
      line.remove_prefix(5);
      if (line.starts_with(' ')) line.remove_prefix(1);
      on_data(line);
    }
    rest_.erase(0, begin);
  }

 private:
  std::string rest_;
};

}  // namespace kvasir::load
