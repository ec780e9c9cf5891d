#include "ops/testing/executor.h"

#include <algorithm>

namespace dsv4::optest {
namespace {

// Before and behind every tensor. The front one is a multiple of 256, so that a tensor has the alignment `allocate` promises; the
// rear one starts at the tensor's last byte.
constexpr int64_t kGuardBytes = 512;

// The part of a tensor that rows [range) need.
Bytes part_of(const Tensor& t, const Bytes& image, RowRange range) {
  if (t.derive) return t.derive(range);
  if (!t.per_row) return image;
  return Bytes(image.begin() + range.begin * t.row_bytes(), image.begin() + range.end * t.row_bytes());
}

// Where two buffers differ outside the spans (which may overlap); empty when nowhere.
std::string first_difference(const Bytes& before, const Bytes& after, std::vector<Span> may_change) {
  std::sort(may_change.begin(), may_change.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  const int64_t size = static_cast<int64_t>(before.size());
  may_change.push_back({size, size});
  int64_t from = 0;
  for (const Span& s : may_change) {
    if (s.begin > from && std::memcmp(before.data() + from, after.data() + from, static_cast<size_t>(s.begin - from)) != 0) {
      while (before[static_cast<size_t>(from)] == after[static_cast<size_t>(from)]) ++from;
      return "byte " + std::to_string(from - kGuardBytes) + " of " + std::to_string(size - 2 * kGuardBytes);
    }
    from = std::max(from, s.end);
  }
  return "";
}

}  // namespace

Executor::Executor(const Problem& problem, Device& device) : problem_(problem), device_(device) {
  for (const auto& w : problem.weights) {
    storage_.emplace_back();
    Result<WeightView> placed = device.place_weight(w->view, w->name, &storage_.back());
    if (!placed.ok()) {
      placement_ = placed.status();
      return;
    }
    placed_.push_back(*placed);
  }
}

Status Executor::run(RowRange range, uint32_t fill, Images& images, std::vector<std::string>& violations) {
  DSV4_RETURN_IF_ERROR(placement_);
  const size_t count = problem_.tensors.size();
  if (problem_.fill_addresses) problem_.fill_addresses(placed_, images);

  std::vector<DeviceBuffer> buffers;
  std::vector<Bytes> before(count);  // guard, contents, guard
  Bound bound{range, {}, placed_, &problem_.tensors};
  const std::vector<Unit> units = problem_.units(range);
  for (size_t i = 0; i < count; ++i) {
    const Tensor& t = problem_.tensors[i];
    const Bytes part = part_of(t, images[i], range);
    before[i] = filled(2 * kGuardBytes + static_cast<int64_t>(part.size()), kPoisonWord);
    std::copy(part.begin(), part.end(), before[i].begin() + kGuardBytes);
  }
  const auto shift = [&](const Unit& u) {  // from the whole image to the buffer of this part
    const Tensor& t = problem_.tensors[static_cast<size_t>(u.tensor)];
    return kGuardBytes - (t.per_row ? range.begin * t.row_bytes() : 0);
  };
  std::vector<std::vector<Span>> may_change(count);
  for (const Unit& u : units) {
    const size_t i = static_cast<size_t>(u.tensor);
    for (const Span& s : u.spans) {
      may_change[i].push_back({s.begin + shift(u), s.end + shift(u)});
      if (problem_.tensors[i].role != Role::kOutput) continue;
      const Bytes words = filled(s.end - s.begin, fill);
      std::copy(words.begin(), words.end(), before[i].begin() + s.begin + shift(u));
    }
  }
  for (size_t i = 0; i < count; ++i) {
    const int64_t size = static_cast<int64_t>(before[i].size());
    DSV4_ASSIGN_OR_RETURN(DeviceBuffer buffer, device_.allocate(size, "operator test: " + problem_.tensors[i].name));
    DSV4_RETURN_IF_ERROR(device_.upload(buffer.as<uint8_t>(), before[i].data(), size));
    bound.pointers.push_back(buffer.as<uint8_t>() + kGuardBytes);
    buffers.push_back(std::move(buffer));
  }

  DSV4_RETURN_IF_ERROR(problem_.call(device_, bound));
  DSV4_RETURN_IF_ERROR(device_.synchronize());

  for (size_t i = 0; i < count; ++i) {
    const Tensor& t = problem_.tensors[i];
    Bytes after(before[i].size());
    DSV4_RETURN_IF_ERROR(device_.download(after.data(), buffers[i].as<uint8_t>(), static_cast<int64_t>(after.size())));
    const std::string where = first_difference(before[i], after, may_change[i]);
    if (!where.empty()) {
      violations.push_back(std::string(t.role == Role::kInput ? "input " : "output ") + t.name + ": memory outside the results was written at " + where +
                           " (a guard of " + std::to_string(kGuardBytes) + " bytes lies before and behind it), rows " + std::to_string(range.begin) + ".." +
                           std::to_string(range.end));
    }
    if (t.role == Role::kInput) continue;
    const int64_t to = t.per_row ? range.begin * t.row_bytes() : 0;
    std::copy(after.begin() + kGuardBytes, after.end() - kGuardBytes, images[i].begin() + to);
  }
  return ok_status();
}

Status Executor::run_parts(const std::vector<RowRange>& parts, uint32_t fill, Images& images, std::vector<std::string>& violations) {
  for (const RowRange& part : parts) DSV4_RETURN_IF_ERROR(run(part, fill, images, violations));
  return ok_status();
}

}  // namespace dsv4::optest
