// Draws progress updates on stderr when it is a terminal: task, item, share, rate. Silent otherwise.
#pragma once

#include <chrono>
#include <string>

#include "base/progress.h"

namespace dsv4 {

class ProgressBar {
 public:
  explicit ProgressBar(bool enabled);
  ~ProgressBar();       // ends the line
  ProgressSink sink();  // refers to this object

 private:
  void draw(const ProgressUpdate& update);

  bool enabled_;
  bool drawn_ = false;
  std::string task_;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace dsv4
