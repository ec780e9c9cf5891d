// The reference device with one operator replaced by a wrong one: the shared operator test must refuse it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "ops/testing/op_cases.h"

namespace dsv4::optest {

class FaultyDevice final : public Device {
 public:
  explicit FaultyDevice(void (*plant)(OpTable&)) : host_(make_reference_device(1)), table_(host_->ops()), info_(host_->info()) {
    info_.backend = "faulty";
    plant(table_);
  }

  const DeviceInfo& info() const override { return info_; }
  const OpTable& ops() const override { return table_; }
  OpContext& context() override { return host_->context(); }
  Result<DeviceBuffer> allocate(int64_t n, const std::string& what) override { return host_->allocate(n, what); }
  Status upload(void* dst, const void* src, int64_t n) override { return host_->upload(dst, src, n); }
  Status download(void* dst, const void* src, int64_t n) override { return host_->download(dst, src, n); }
  Status copy(void* dst, const void* src, int64_t n) override { return host_->copy(dst, src, n); }
  Status zero(void* dst, int64_t n) override { return host_->zero(dst, n); }
  Status synchronize() override { return host_->synchronize(); }
  Result<WeightView> place_weight(const WeightView& w, const std::string& name, DeviceBuffer* storage) override {
    return host_->place_weight(w, name, storage);
  }

 private:
  std::unique_ptr<Device> host_;
  OpTable table_;
  DeviceInfo info_;
};

// A wrong operator, the case that must refuse it, and words of the reason (empty: any).
struct Fault {
  const char* name;
  const char* op;
  const char* op_case;
  const char* reason;
  void (*plant)(OpTable&);
};
inline std::ostream& operator<<(std::ostream& out, const Fault& f) { return out << f.op << ": " << f.name; }

inline void expect_refused(const Fault& fault) {
  const std::vector<OpCase> cases = all_op_cases();
  for (const OpCase& c : cases) {
    if (c.op != fault.op || c.name != fault.op_case) continue;
    FaultyDevice faulty(fault.plant);
    const std::unique_ptr<Device> reference = make_reference_device(1);
    const CaseReport report = run_op_case(c, faulty, *reference, {});
    EXPECT_EQ(static_cast<int>(report.outcome), static_cast<int>(CaseOutcome::kFailed)) << "the planted fault was accepted";
    std::string reasons;
    for (const std::string& r : report.reasons) reasons += r + "\n";
    EXPECT_NE(reasons.find(fault.reason), std::string::npos) << "refused for another reason:\n" << reasons;
    return;
  }
  ADD_FAILURE() << "no case " << fault.op << "/" << fault.op_case;
}

inline std::string fault_name(const testing::TestParamInfo<Fault>& info) { return std::string(info.param.op) + "_" + info.param.name; }

}  // namespace dsv4::optest
