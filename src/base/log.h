// The log sink. Rooms log through `log_info` and friends; the application decides where lines go (stderr, a file, JSON
// lines, nowhere). A library user who installs no sink sees nothing.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace dsv4 {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

using LogSink = std::function<void(LogLevel, std::string_view message)>;

// Installs the process-wide sink (empty = silent). Call it before threads start; replacing it later is a race.
void set_log_sink(LogSink sink);

void log_message(LogLevel level, std::string_view message);
inline void log_debug(std::string_view m) { log_message(LogLevel::kDebug, m); }
inline void log_info(std::string_view m) { log_message(LogLevel::kInfo, m); }
inline void log_warning(std::string_view m) { log_message(LogLevel::kWarning, m); }
inline void log_error(std::string_view m) { log_message(LogLevel::kError, m); }

}  // namespace dsv4
