#include "base/log.h"

#include <utility>

namespace dsv4 {
namespace {
// The one process-wide object of the library: a log line has no other way out of a deep call. Set once, before threads.
LogSink& sink() {
  static LogSink instance;
  return instance;
}
}  // namespace

void set_log_sink(LogSink new_sink) { sink() = std::move(new_sink); }

void log_message(LogLevel level, std::string_view message) {
  if (sink()) sink()(level, message);
}

}  // namespace dsv4
