#include "verify/triage.h"

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

constexpr const char* kUsageNoise = R"(Exception in thread Thread-4 (_report_usage_worker):
Traceback (most recent call last):
  File "/usr/lib/python3.10/threading.py", line 1016, in _bootstrap_inner
    self.run()
  File "/opt/vllm/usage/usage_lib.py", line 160, in _report_usage_worker
    self._report_usage_once(model_architecture, usage_context, extra_kvs)
  File "/usr/lib/python3.10/json/decoder.py", line 355, in raw_decode
    raise JSONDecodeError("Expecting value", s, err.value) from None
json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)
)";

constexpr const char* kShutdownNoise = R"(Exception ignored in: <function CudaRTLibrary.__del__ at 0x7f>
Traceback (most recent call last):
  File "/opt/vllm/cuda_wrapper.py", line 200, in __del__
    so_file = find_loaded_library("libcudart")
RuntimeError: libcudart is not loaded in the current process, try setting VLLM_CUDART_SO_PATH
)";

constexpr const char* kGoodTokens =
    R"(TOKEN_IDS: [101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114, 115, 116, 117, 118, 119, 120, 121, 122, 123, 124, 125, 126, 127, 128, 129, 130, 131, 132]
FINISH_REASON: length
OUTPUT_REPR: 'Once there was an otter who lived near the river and found a lantern under an old tree.'
OUTPUT: Once there was an otter who lived near the river and found a lantern under an old tree.
VERDICT: COHERENT (32 tokens, no fault found)
)";

struct Row {
  const char* name;
  std::string log;
  TriageOutcome outcome;
  LogStage stage;       // reached
  const char* blocker;  // a part of its line; "" = none
  LogStage blocker_stage = LogStage::kNone;
  size_t disagreements = 0;
};

std::string log_of(std::initializer_list<std::string> parts) {
  std::string out;
  for (const std::string& p : parts) out += p;
  return out;
}

const std::vector<Row>& table() {
  using O = TriageOutcome;
  using S = LogStage;
  static const std::vector<Row> rows = {
      {"empty log", "", O::kUnproven, S::kNone, ""},
      {"a good run without any noise", log_of({"### STAGE: env\n### STAGE: engine\nENGINE_READY in 228.9s\n### STAGE: generate\n", kGoodTokens}), O::kSuccess,
       S::kDone, ""},
      {"a good run with usage noise before and library noise after", log_of({kUsageNoise, "ENGINE_READY in 228.9s\n", kGoodTokens, kShutdownNoise}),
       O::kSuccess, S::kDone, ""},
      {"engine ready only", "ENGINE_READY in 228.9s\n", O::kUnproven, S::kEngine, ""},
      {"usage noise only", kUsageNoise, O::kUnproven, S::kNone, ""},
      {"usage noise, then the real blocker",
       log_of(
           {kUsageNoise,
            "### STAGE: engine\nTraceback (most recent call last):\n  File \"a.py\", line 1, in f\n    g()\nRuntimeError: PassManager::run failed\n",
            "Traceback (most recent call last):\n  File \"core.py\", line 9, in init\nRuntimeError: Engine core initialization failed. See root cause above.\n"}),
       O::kBlocked, S::kEngine, "PassManager::run failed", S::kEngine},
      {"compiler API mismatch with server prefixes",
       "(EngineCore pid=77) ERROR 11-29 10:00:00 [core.py:590] Traceback (most recent call last):\n"
       "(EngineCore pid=77) ERROR 11-29 10:00:00 [core.py:590]   File \"x.py\", line 1, in k\n"
       "(EngineCore pid=77) ERROR 11-29 10:00:00 [core.py:590] triton.compiler.errors.CompilationError: at 12:8: softmax() got an unexpected keyword argument 'dim'\n",
       O::kBlocked, S::kNone, "softmax() got an unexpected keyword argument", S::kEngine},
      {"device assertion, then a memory fault",
       "### STAGE: generate\n/src/skinny_gemms.hip:580: void wvSplitK_hf_sml_(...): Device-side assertion `false' failed.\nVMFault: address 0x7f00 (code 1)\n",
       O::kBlocked, S::kGenerate, "skinny_gemms.hip:580", S::kGenerate},
      {"refused cache option",
       "Traceback (most recent call last):\n  File \"a.py\", line 3, in <module>\nValueError: DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got auto\n",
       O::kBlocked, S::kNone, "only supports fp8 kv-cache, got auto", S::kEngine},
      {"device lost",
       "### STAGE: load\nterminate called after throwing an instance of 'sycl::exception'\n  what():  level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)\n",
       O::kBlocked, S::kLoad, "UR_RESULT_ERROR_DEVICE_LOST", S::kLoad},
      {"mixed runtime libraries", "python: symbol lookup error: libsycl.so.8: undefined symbol: urDeviceWaitExp\n", O::kBlocked, S::kNone, "urDeviceWaitExp",
       S::kEnv},
      {"device exception",
       "ENGINE_READY in 101.0s\n:0:rocdevice.cpp:2984: Callback: Queue 0x7f aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception. code: 0x1016\n",
       O::kBlocked, S::kEngine, "HSA_STATUS_ERROR_EXCEPTION", S::kGenerate},
      {"field case: degraded output, job completed",
       "ENGINE_READY in 228.9s\nTOKEN_IDS: [32, 0, 0, ...]\nOUTPUT_REPR: '>'\nJobID|State|ExitCode|Elapsed|MaxRSS\n4711|COMPLETED|0:0|00:09:11|\n4711.batch|COMPLETED|0:0|00:09:11|1G\n4711.extern|COMPLETED|0:0|00:09:11|1M\n",
       O::kRefused, S::kGenerate, "", S::kNone, 1},
      {"constant other token", "TOKEN_IDS: [30594, 0, 0, 0, 0, 0, 0, 0]\nOUTPUT_REPR: 'word'\n", O::kRefused, S::kGenerate, ""},
      {"probe refused, job failed with 2: no crash",
       "TOKEN_IDS: [32, 0, 0, ...]\nOUTPUT_REPR: '>'\nVERDICT: BOS_LOOP (31 of 32 tokens)\nEXIT_CODE: 2\nJobID|State|ExitCode|Elapsed|MaxRSS\n12|FAILED|2:0|00:01:00|\n",
       O::kRefused, S::kDone, ""},
      {"verdict contradicts the tokens", "TOKEN_IDS: [32, 0, 0, ...]\nOUTPUT_REPR: '>'\nVERDICT: COHERENT\n", O::kRefused, S::kDone, "", S::kNone, 1},
      {"exit codes disagree", log_of({kGoodTokens, "EXIT_CODE: 0\n9|FAILED|1:0|00:01:00|\n"}), O::kUnproven, S::kDone, "", S::kNone, 2},
      {"coherent, but the program exited with 1", log_of({kGoodTokens, "EXIT_CODE: 1\n"}), O::kUnproven, S::kDone, "", S::kNone, 1},
      {"job completed without tokens", "ENGINE_READY in 3.0s\n9|COMPLETED|0:0|00:01:00|\n", O::kUnproven, S::kEngine, "", S::kNone, 1},
      {"time limit",
       "### STAGE: load\nslurmstepd: error: *** JOB 33 ON node1 CANCELLED AT 2026-11-29T10:00:00 DUE TO TIME LIMIT ***\n33|TIMEOUT|0:15|01:00:00|\n",
       O::kBlocked, S::kLoad, "DUE TO TIME LIMIT", S::kLoad},
      {"out of memory",
       "### STAGE: engine\nTraceback (most recent call last):\n  File \"m.py\", line 1\ntorch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.\n",
       O::kBlocked, S::kEngine, "HIP out of memory", S::kEngine},
      {"a module is missing", "Traceback (most recent call last):\n  File \"p.py\", line 1, in <module>\nModuleNotFoundError: No module named 'vllm'\n",
       O::kBlocked, S::kNone, "No module named 'vllm'", S::kEnv},
      {"an unknown exception on the main path",
       "### STAGE: config\nTraceback (most recent call last):\n  File \"p.py\", line 1, in <module>\nKeyError: 'compress_ratios'\n", O::kBlocked, S::kConfig,
       "KeyError: 'compress_ratios'", S::kConfig},
      {"an unknown background thread, then good tokens",
       log_of({"Exception in thread Thread-9 (poll):\nTraceback (most recent call last):\n  File \"t.py\", line 2\nOSError: gone\n", kGoodTokens}), O::kSuccess,
       S::kDone, ""},
      {"a traceback that the run survived",
       log_of({"Traceback (most recent call last):\n  File \"t.py\", line 2\nValueError: fallback to the slow path\n", kGoodTokens}), O::kSuccess, S::kDone,
       ""},
      {"traceback after the verdict is clean-up",
       log_of({kGoodTokens, "Traceback (most recent call last):\n  File \"t.py\", line 2\nAttributeError: 'NoneType' object has no attribute 'close'\n"}),
       O::kSuccess, S::kDone, ""},
      {"this engine: a stage failed",
       "### STAGE: env\n### STAGE: env ok in 0.0 s: cpu\n### STAGE: config\n### STAGE: config FAILED in 0.0 s: m/config.json: no such file\nVERDICT: ERROR (stage config)\nEXIT_CODE: 1\n",
       O::kBlocked, S::kDone, "m/config.json: no such file", S::kConfig},
      {"this engine: a command's error", "dsv4 run: --cache is \"auto\": DeepSeek V4 caches are fp8_ds_mla (fp8), or f32 as the oracle's\n", O::kBlocked,
       S::kNone, "--cache is \"auto\"", S::kNone},
      {"this engine: validate",
       "### STAGE: generate\nvalidate: request 1, position 17, layer 2, kv_insert, rank 0: decoded K: window row 17: channel 3 is nan\nVERDICT: NONFINITE (x)\n",
       O::kBlocked, S::kDone, "layer 2, kv_insert", S::kGenerate},
      {"a log cut off within a traceback", "### STAGE: engine\nTraceback (most recent call last):\n  File \"t.py\", line 2, in f\n", O::kBlocked, S::kEngine,
       "without an exception line", S::kEngine},
      {"Windows line ends", "ENGINE_READY in 3s\r\nTOKEN_IDS: [32, 0, 0, ...]\r\nOUTPUT_REPR: '>'\r\n", O::kRefused, S::kGenerate, ""},
  };
  return rows;
}

TEST(Triage, table) {
  ASSERT_GE(table().size(), 20u);
  for (const Row& row : table()) {
    SCOPED_TRACE(row.name);
    const TriageReport r = triage({{"log", row.log}});
    EXPECT_STREQ(triage_outcome_name(r.outcome), triage_outcome_name(row.outcome)) << to_text(r);
    EXPECT_STREQ(log_stage_name(r.stage), log_stage_name(row.stage));
    EXPECT_EQ(r.disagreements.size(), row.disagreements) << to_text(r);
    EXPECT_EQ(r.blocker.has_value(), row.blocker[0] != '\0') << to_text(r);
    if (r.blocker && row.blocker[0] != '\0') {
      EXPECT_NE(r.blocker->text.find(row.blocker), std::string::npos) << r.blocker->text;
      EXPECT_STREQ(log_stage_name(r.blocker->stage), log_stage_name(row.blocker_stage));
    }
    EXPECT_FALSE(r.conclusion.empty());
  }
}

TEST(Triage, consequences_and_noise_are_told_apart) {
  const TriageReport r = triage({{"log", table()[5].log}});
  std::vector<std::string> kinds;
  for (const LogEvent& e : r.events) {
    if (e.kind != LogKind::kProgress) kinds.push_back(log_kind_name(e.kind));
  }
  EXPECT_EQ(kinds, (std::vector<std::string>{"noise", "BLOCKER", "consequence"}));
  EXPECT_EQ(r.blocker->line, 14);
}

TEST(Triage, several_files_are_one_job) {
  const std::string state = "JobID|State|ExitCode|Elapsed|MaxRSS\n5|COMPLETED|0:0|00:01:00|\n";
  const TriageReport r = triage({{"raw.log", "TOKEN_IDS: [32, 0, 0, ...]\nOUTPUT_REPR: '>'\n"}, {"sacct.txt", state}});
  EXPECT_EQ(r.outcome, TriageOutcome::kRefused);
  EXPECT_EQ(r.scheduler_state, "COMPLETED");
  ASSERT_EQ(r.disagreements.size(), 1u);
  EXPECT_EQ(r.judged, Verdict::kBosLoop);
  EXPECT_NE(to_text(r).find("disagreement: the job COMPLETED, but its output is refused"), std::string::npos);
}

TEST(Triage, any_bytes_are_read) {
  std::string bytes;
  for (int i = 0; i < 4096; ++i) bytes += static_cast<char>((i * 7919) % 256);
  EXPECT_EQ(triage({{"noise", bytes}}).outcome, TriageOutcome::kUnproven);
  EXPECT_NE(to_json(triage({{"noise", bytes + "\nTraceback (most recent call last):\nError: \xff\xfe\n"}})).find("BLOCKED"), std::string::npos);
}

}  // namespace
}  // namespace dsv4
