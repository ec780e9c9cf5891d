#include "checkpoint/fault_list.h"

namespace dsv4 {
namespace {

// Names come from files: whatever they hold, a report stays a list of lines.
std::string one_line(const std::string& text, size_t max_bytes) {
  std::string out = text.substr(0, max_bytes);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  if (text.size() > max_bytes) out += "...";
  return out;
}

}  // namespace

void FaultList::add(const std::string& line) {
  constexpr size_t kMaxLineBytes = 600;
  ++count_;
  if (lines_.size() < kMaxFaultLines) lines_.push_back(one_line(line, kMaxLineBytes));
}

Status FaultList::to_status(StatusCode code, const std::string& what) const {
  if (count_ == 0) return ok_status();
  std::string message = what + ": " + std::to_string(count_) + (count_ == 1 ? " fault" : " faults");
  for (const std::string& line : lines_) message += "\n  " + line;
  if (count_ > lines_.size()) message += "\n  and " + std::to_string(count_ - lines_.size()) + " more";
  return {code, message};
}

std::string printable_name(const std::string& name) { return one_line(name, 120); }

}  // namespace dsv4
