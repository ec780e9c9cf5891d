#include "verify/golden_file.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

namespace dsv4 {
namespace {

// "tokens/129" with prefix "tokens/" -> 129.
std::optional<int64_t> number_after(const std::string& name, const std::string& prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  const char* end = name.data() + name.size();
  int64_t value = 0;
  const auto parsed = std::from_chars(name.data() + prefix.size(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || value < 0) return std::nullopt;
  return value;
}

}  // namespace

const char* golden_kind_name(GoldenKind kind) {
  switch (kind) {
    case GoldenKind::kExact: return "exact";
    case GoldenKind::kQat: return "qat";
    case GoldenKind::kServed: return "served";
  }
  return "?";
}

Result<GoldenFile> GoldenFile::open(const std::string& path) {
  GoldenFile golden;
  golden.path_ = path;
  DSV4_ASSIGN_OR_RETURN(golden.file_, SafetensorsFile::open(path));
  for (const SafetensorsTensor& t : golden.file_.header().tensors) {
    if (const auto n = number_after(t.name, "tokens/")) golden.lengths_.push_back(*n);
    if (const auto k = number_after(t.name, "prompt/")) golden.prompts_.push_back(*k);
  }
  std::sort(golden.lengths_.begin(), golden.lengths_.end());
  std::sort(golden.prompts_.begin(), golden.prompts_.end());
  if (golden.lengths_.empty()) return invalid_data(path + ": not a golden file: it has no tensor tokens/N");
  return golden;
}

bool GoldenFile::has_kind(GoldenKind kind) const {
  return std::any_of(lengths_.begin(), lengths_.end(), [&](int64_t n) { return has(std::string(golden_kind_name(kind)) + "/logits/" + std::to_string(n)); });
}

namespace {

template <class T>
Result<std::vector<T>> read(const SafetensorsFile& file, const std::string& path, const std::string& name, DType dtype) {
  const SafetensorsTensor* t = file.find(name);
  if (t == nullptr) return invalid_data(path + ": no tensor " + name);
  if (t->dtype != dtype)
    return invalid_data(path + ": " + name + ": expected " + std::string(dtype_name(dtype)) + ", found " + describe_tensor(t->dtype, t->shape));
  std::vector<T> out(static_cast<size_t>(t->size_bytes) / sizeof(T));
  std::memcpy(out.data(), file.bytes(*t).data(), static_cast<size_t>(t->size_bytes));
  return out;
}

}  // namespace

Result<std::vector<int32_t>> GoldenFile::ints(const std::string& name) const { return read<int32_t>(file_, path_, name, DType::kI32); }
Result<std::vector<float>> GoldenFile::floats(const std::string& name) const { return read<float>(file_, path_, name, DType::kF32); }

}  // namespace dsv4
