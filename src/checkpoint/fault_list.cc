#include "checkpoint/fault_list.h"

#include <utility>

namespace dsv4 {

void FaultList::add(std::string line) {
  ++count_;
  if (lines_.size() < kMaxFaultLines) lines_.push_back(std::move(line));
}

Status FaultList::to_status(StatusCode code, const std::string& what) const {
  if (count_ == 0) return ok_status();
  std::string message = what + ": " + std::to_string(count_) + (count_ == 1 ? " fault" : " faults");
  for (const std::string& line : lines_) message += "\n  " + line;
  if (count_ > lines_.size()) message += "\n  and " + std::to_string(count_ - lines_.size()) + " more";
  return {code, message};
}

std::string printable_name(const std::string& name) {
  constexpr size_t kMaxBytes = 120;
  std::string out = name.substr(0, kMaxBytes);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  if (name.size() > kMaxBytes) out += "...";
  return out;
}

}  // namespace dsv4
