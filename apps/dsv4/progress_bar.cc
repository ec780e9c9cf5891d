#include "progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

namespace dsv4 {

ProgressBar::ProgressBar(bool enabled) : enabled_(enabled && isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

ProgressSink ProgressBar::sink() {
  if (!enabled_) return {};
  return [this](const ProgressUpdate& update) { draw(update); };
}

void ProgressBar::draw(const ProgressUpdate& u) {
  const auto now = std::chrono::steady_clock::now();
  if (task_ != u.task) {
    task_ = u.task;
    start_ = now;
    last_ = {};
  }
  if (now - last_ < std::chrono::milliseconds(100) && u.done != u.total) return;
  last_ = now;
  drawn_ = true;
  const double seconds = std::max(1e-3, std::chrono::duration<double>(now - start_).count());
  std::string amount, rate;
  if (u.unit == "bytes") {
    amount = fmt::format("{:.2f} / {:.2f} GB", static_cast<double>(u.done) / 1e9, static_cast<double>(u.total) / 1e9);
    rate = fmt::format("{:.2f} GB/s", static_cast<double>(u.done) / 1e9 / seconds);
  } else {
    amount = fmt::format("{} / {} {}", u.done, u.total, u.unit);
    rate = fmt::format("{:.0f}/s", static_cast<double>(u.done) / seconds);
  }
  const double share = u.total > 0 ? std::min(1.0, static_cast<double>(u.done) / static_cast<double>(u.total)) : 0;
  const int filled = static_cast<int>(share * 24);
  fmt::print(stderr, "\r\033[K{} [{}{}] {:3.0f} %  {}  {}  {}", u.task, std::string(static_cast<size_t>(filled), '#'),
             std::string(static_cast<size_t>(24 - filled), '.'), share * 100, amount, rate, u.item);
  std::fflush(stderr);
}

}  // namespace dsv4
