#include "checkpoint/tensor_check.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "checkpoint/draft.h"
#include "checkpoint/safetensors.h"

namespace dsv4 {
namespace {

// "layers.3" of "layers.3.attn.wq_a.weight"; empty for names outside layers.
std::string layer_prefix(std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  if (name.substr(0, kLayers.size()) != kLayers) return "";
  const size_t dot = name.find('.', kLayers.size());
  return dot == std::string_view::npos ? "" : std::string(name.substr(0, dot));
}

// "layers.3.ffn.experts.7" of "layers.3.ffn.experts.7.w1.weight"; empty for others.
std::string expert_prefix(std::string_view name) {
  constexpr std::string_view kExperts = ".ffn.experts.";
  const size_t at = name.find(kExperts);
  if (at == std::string_view::npos) return "";
  const size_t dot = name.find('.', at + kExperts.size());
  return dot == std::string_view::npos ? "" : std::string(name.substr(0, dot));
}

// Counts names by layer and by expert, to tell whole absences (or whole surpluses) in one line each.
struct Census {
  std::map<std::string, int64_t> by_group;

  void add(const std::string& name) {
    if (const std::string p = layer_prefix(name); !p.empty()) ++by_group[p];
    if (const std::string p = expert_prefix(name); !p.empty()) ++by_group[p];
  }
  int64_t count(const std::string& group) const {
    const auto it = by_group.find(group);
    return it == by_group.end() ? 0 : it->second;
  }
};

// Names of one kind (all absent, or all surplus), told one by one, except where a layer or expert is in `whole` entirely: that is
// one line, and neighbouring experts of a layer share it.
class Teller {
 public:
  // `population` counts the names that a group has in full; a group is whole when `names` holds that many of it.
  Teller(const std::vector<std::string>& names, const Census& population) : names_(names), population_(population) {
    for (const std::string& name : names) census_.add(name);
  }

  bool whole(const std::string& group) const { return !group.empty() && census_.count(group) == population_.count(group); }

  template <class TellName, class TellGroup>
  void tell(const TellName& tell_name, const TellGroup& tell_group) {
    std::set<std::string> told;
    std::map<std::string, std::vector<std::string>> experts;  // layer's "layers.L.ffn.experts" -> expert numbers
    for (const std::string& name : names_) {
      const std::string layer = layer_prefix(name), expert = expert_prefix(name);
      if (whole(layer)) {
        if (told.insert(layer).second) tell_group(layer, std::to_string(census_.count(layer)) + " tensors");
      } else if (whole(expert)) {
        const size_t dot = expert.rfind('.');
        if (told.insert(expert).second) experts[expert.substr(0, dot)].push_back(expert.substr(dot + 1));
      } else {
        tell_name(name);
      }
    }
    for (auto& [owner, numbers] : experts) {
      std::sort(numbers.begin(), numbers.end(), [](const std::string& a, const std::string& b) { return std::pair(a.size(), a) < std::pair(b.size(), b); });
      const std::string which =
          numbers.size() == 1 ? "expert " + numbers.front() : std::to_string(numbers.size()) + " experts from " + numbers.front() + " to " + numbers.back();
      tell_group(owner, which);
    }
  }

 private:
  const std::vector<std::string>& names_;
  const Census& population_;
  Census census_;
};

void check_missing(const TensorCheckInput& in, const std::map<std::string_view, const ExpectedTensor*>& table, FaultList* faults) {
  std::vector<std::string> missing;
  Census population;
  for (const ExpectedTensor& want : in.expected) {
    population.add(want.name);
    if (find_tensor(in.tensors, want.name) == nullptr && in.accounted.count(want.name) == 0) missing.push_back(want.name);
  }
  Teller(missing, population)
      .tell(
          [&](const std::string& name) {
            const ExpectedTensor& want = *table.at(name);
            const std::string weight = want.kind == TensorKind::kWeightScale ? name.substr(0, name.rfind('.')) + ".weight" : "";
            const bool orphan = !weight.empty() && find_tensor(in.tensors, weight) != nullptr;
            faults->add(in.source + ": " + name + ": expected " + describe_tensor(want.dtype, want.shape) + (orphan ? " beside its weight" : "") +
                        ", found none");
          },
          [&](const std::string& group, const std::string& which) { faults->add(in.source + ": " + group + ": expected " + which + ", found none"); });
}

void check_surplus(const TensorCheckInput& in, const std::map<std::string_view, const ExpectedTensor*>& table, FaultList* warnings) {
  std::vector<std::string> surplus;
  Census population;
  for (const TensorEntry& t : in.tensors) {
    population.add(t.name);
    if (table.count(t.name) == 0 && !is_draft_name(t.name)) surplus.push_back(t.name);
  }
  Teller(surplus, population)
      .tell(
          [&](const std::string& name) {
            const TensorEntry& t = *find_tensor(in.tensors, name);
            warnings->add(t.file + ": " + printable_name(name) + ": " + describe_tensor(t.dtype, t.shape) + " is not part of this model; it is not used");
          },
          [&](const std::string& group, const std::string& which) {
            warnings->add(printable_name(group) + ": not part of this model and not used: " + which);
          });
}

}  // namespace

void check_tensors(const TensorCheckInput& in, FaultList* faults, FaultList* warnings) {
  std::map<std::string_view, const ExpectedTensor*> table;
  for (const ExpectedTensor& want : in.expected) {
    table[want.name] = &want;
    const TensorEntry* got = find_tensor(in.tensors, want.name);
    if (got != nullptr && (got->dtype != want.dtype || got->shape != want.shape)) {
      faults->add(got->file + ": " + want.name + ": expected " + describe_tensor(want.dtype, want.shape) + ", found " +
                  describe_tensor(got->dtype, got->shape));
    }
  }
  check_missing(in, table, faults);
  check_surplus(in, table, warnings);
}

}  // namespace dsv4
