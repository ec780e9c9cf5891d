// Finds stop strings in a stream of text pieces, holding back what may turn out to be the beginning of one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsv4 {

class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Takes the next piece; returns the text that is certain. Once a stop string is complete (the one that begins first; of those
  // the longest), stopped() is true, the text before it is returned, and all later text is swallowed.
  std::string feed(std::string_view piece);

  // The end: what was held back.
  std::string flush();

  bool stopped() const { return stopped_; }
  const std::string& found() const { return found_; }  // the stop string, once stopped

 private:
  std::vector<std::string> stops_;
  std::string held_, found_;
  bool stopped_ = false;
};

}  // namespace dsv4
