#include "verify/triage_patterns.h"

namespace dsv4 {

const std::vector<LogPattern>& log_patterns() {
  using K = LogKind;
  using S = LogStage;
  static const std::vector<LogPattern> patterns = {
      // Noise: in good runs too.
      {"libcudart is not loaded in the current process", K::kNoise, S::kNone, "clean-up on ROCm after results and verdict; never the first error"},
      {"VLLM_CUDART_SO_PATH", K::kNoise, S::kNone, "the hint that comes with the libcudart message at shut-down"},
      {"resource_tracker: There appear to be", K::kNoise, S::kNone, "left-over semaphores at interpreter exit"},
      {"destroy_process_group() was not called", K::kNoise, S::kNone, "a warning at shut-down"},
      {"Exception ignored in:", K::kNoise, S::kNone, "a destructor at interpreter exit"},
      {"Exception ignored in atexit callback", K::kNoise, S::kNone, "a clean-up at interpreter exit"},
      // Consequences: something else failed first.
      {"Engine core initialization failed", K::kConsequence, S::kEngine, "the parent's word for a failure inside the engine process; the cause is above"},
      {"WorkerProc initialization failed", K::kConsequence, S::kEngine, "the cause is in the worker's own traceback"},
      {"EngineDeadError", K::kConsequence, S::kNone, "the engine process had died before"},
      {"Engine core proc", K::kConsequence, S::kNone, "the engine process had died before"},
      {"srun: error:", K::kConsequence, S::kNone, "the launcher reports the exit of a task"},
      // Blockers with a stage of their own.
      {"urDeviceWaitExp", K::kBlocker, S::kEnv, "runtime libraries of two ABI generations are mixed: make the loader find one set"},
      {"ModuleNotFoundError", K::kBlocker, S::kEnv, "a Python module is not installed in this environment"},
      {"ImportError", K::kBlocker, S::kEnv, "an import failed: environment or library mismatch"},
      {"undefined symbol", K::kBlocker, S::kEnv, "a library of another version was loaded"},
      {"error while loading shared libraries", K::kBlocker, S::kEnv, "a shared library is missing on this machine"},
      {"DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache", K::kBlocker, S::kEngine, "a refused option: the cache type must be fp8 (fp8_ds_mla)"},
      {"PassManager::run failed", K::kBlocker, S::kEngine, "Triton could not lower a kernel for this device"},
      {"triton.compiler.errors.CompilationError", K::kBlocker, S::kEngine, "a Triton kernel does not suit this compiler version (warm-up)"},
      {"got an unexpected keyword argument", K::kBlocker, S::kEngine, "compiler and kernels are of different API versions (warm-up)"},
      {"Device-side assertion", K::kBlocker, S::kGenerate, "a true assertion on the device; a memory fault after it is its consequence"},
      {"wvSplitK_hf_sml_", K::kBlocker, S::kGenerate, "the skinny-GEMM kernel failed on the device"},
      {"skinny_gemms.hip", K::kBlocker, S::kGenerate, "the skinny-GEMM kernel failed on the device"},
      {"VMFault", K::kBlocker, S::kGenerate, "a memory fault on the device"},
      {"HSA_STATUS_ERROR_EXCEPTION", K::kBlocker, S::kGenerate, "a device exception (0x1016)"},
      {"UR_RESULT_ERROR_DEVICE_LOST", K::kBlocker, S::kNone, "the device was lost (driver time-out storm): recover the device, do not rerun blindly"},
      {"out of memory", K::kBlocker, S::kNone, "device memory is exhausted: fewer sequences, a shorter context, or more devices"},
      {"OutOfMemoryError", K::kBlocker, S::kNone, "device memory is exhausted: fewer sequences, a shorter context, or more devices"},
      {"oom-kill", K::kBlocker, S::kNone, "the machine ran out of memory and killed the job"},
      {"oom_kill", K::kBlocker, S::kNone, "the machine ran out of memory and killed the job"},
      {"DUE TO TIME LIMIT", K::kBlocker, S::kNone, "the scheduler ended the job at its time limit"},
      {"Segmentation fault", K::kBlocker, S::kNone, "the program crashed"},
      {"Bus error", K::kBlocker, S::kNone, "the program crashed (a mapped file that shrank, or bad memory)"},
      {"check failed:", K::kBlocker, S::kNone, "dsv4 found a fault of its own and stopped"},
      {"validate: request", K::kBlocker, S::kGenerate, "--validate refused a value: the line names request, position, layer and operator"},
      {"Address already in use", K::kBlocker, S::kEngine, "another server has this port"},
      {"NCCL error", K::kBlocker, S::kNone, "a collective failed: look at the other ranks' logs for the first"},
      {"RCCL error", K::kBlocker, S::kNone, "a collective failed: look at the other ranks' logs for the first"},
      // Progress.
      {"ENGINE_READY in", K::kProgress, S::kEngine, "the engine stage ended well; it proves nothing about tokens"},
      {"TOKEN_IDS:", K::kState, S::kGenerate, "generated tokens"},
      {"FINISH_REASON:", K::kState, S::kGenerate, "why the answer ended"},
      {"OUTPUT_REPR:", K::kState, S::kGenerate, "the generated text"},
      {"VERDICT:", K::kState, S::kDone, "the probe's own verdict"},
      {"EXIT_CODE:", K::kState, S::kNone, "exit code of the program, as the job script saw it"},
      {"Loading safetensors checkpoint shards", K::kProgress, S::kLoad, "weights are being read"},
      {"Initializing a V1 LLM engine", K::kProgress, S::kEngine, "the engine is being built"},
      {"Capturing CUDA graph", K::kProgress, S::kEngine, "graphs are being captured"},
      {"Application startup complete", K::kProgress, S::kEngine, "the server answers; it proves nothing about tokens"},
  };
  return patterns;
}

const LogPattern* match_line(std::string_view line) {
  for (const LogPattern& p : log_patterns()) {
    if (line.find(p.needle) != std::string_view::npos) return &p;
  }
  return nullptr;
}

}  // namespace dsv4
