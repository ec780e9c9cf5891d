#include "ops/testing/op_contract.h"

#include <CLI/CLI.hpp>
#include <cstdio>

namespace dsv4 {

int run_op_contract(int argc, char** argv, const char* backend, const std::function<std::unique_ptr<Device>()>& factory) {
  CLI::App app(std::string("Shared operator test of the ") + backend + " backend");
  std::string filter;
  RunOptions options;
  bool list = false, no_controls = false, no_promises = false;
  app.add_option("--filter", filter, "only cases whose op/name contains this");
  app.add_option("--seed", options.seed, "seed of all inputs; a failure prints the one it had")->capture_default_str();
  app.add_flag("--list", list, "print the names and stop");
  app.add_flag("--no-controls", no_controls, "skip the negative controls of the judge");
  app.add_flag("--no-promises", no_promises, "skip repeats, rows alone and parts of the batch");
  app.add_flag("--same-bits", options.same_bits_as_reference, "also demand the reference's very bits");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  options.controls = !no_controls;
  options.promises = !no_promises;

  std::vector<OpCase> cases;
  for (OpCase& c : all_op_cases()) {
    if (c.full_name().find(filter) != std::string::npos) cases.push_back(std::move(c));
  }
  if (list) {
    for (const OpCase& c : cases) std::printf("%s\n", c.full_name().c_str());
    return 0;
  }
  if (cases.empty()) {
    std::fprintf(stderr, "no case matches --filter=%s\n", filter.c_str());
    return 1;
  }
  const std::unique_ptr<Device> tested = factory(), reference = make_reference_device(0);
  if (!tested) {
    std::fprintf(stderr, "the %s backend is not available\n", backend);
    return 1;
  }
  std::printf("%s, seed %llu\n", tested->info().name.c_str(), static_cast<unsigned long long>(options.seed));
  std::vector<CaseReport> reports;
  bool failed = false;
  for (const OpCase& c : cases) {
    reports.push_back(run_op_case(c, *tested, *reference, options));
    failed |= reports.back().outcome == CaseOutcome::kFailed;
  }
  std::fputs(report_table(reports).c_str(), stdout);
  return failed ? 1 : 0;
}

}  // namespace dsv4
