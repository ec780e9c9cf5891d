// What stopped this job? Reads logs of this engine, of a Slurm job and of servers like vLLM; separates noise from the first real blocker,
// tells the stage reached, and whether scheduler, exit code, token ids and verdict agree. Pure: text in, report out.
//
// Order of reading: the earliest traceback or device assertion of the main path; whether it is background, shut-down or consequence;
// then ENGINE_READY, TOKEN_IDS and the verdict; last the scheduler's state and exit code. A run counts as a success only when its
// tokens say so: an engine that got ready, or a job that COMPLETED, proves nothing about tokens; nor does the absence of noise.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "verify/verdict.h"

namespace dsv4 {

enum class LogKind : uint8_t {
  kProgress,     // a stage was reached
  kNoise,        // also in good runs
  kBackground,   // a thread beside the main path failed; nothing says that it mattered
  kBlocker,      // on the main path
  kConsequence,  // follows from an earlier blocker
  kState,        // scheduler, exit codes, tokens, verdicts
};
const char* log_kind_name(LogKind kind);

enum class LogStage : uint8_t { kNone, kEnv, kConfig, kLoad, kEngine, kGenerate, kDone };
const char* log_stage_name(LogStage stage);  // "nothing", "env", ..., "done"

struct LogFile {
  std::string name;
  std::string_view text;
};

struct LogEvent {
  std::string file;
  int64_t line = 0;  // 1-based; of a traceback: its exception line
  LogKind kind = LogKind::kProgress;
  LogStage stage = LogStage::kNone;  // a blocker's own, if its line tells; else the stage in which it came
  std::string text;                  // the line, shortened
  std::string meaning;               // what such a line means
};

enum class TriageOutcome : uint8_t {
  kSuccess,   // the tokens are coherent, and nothing contradicts it
  kBlocked,   // a blocker ended the run
  kRefused,   // tokens came, and they are not sound
  kUnproven,  // no tokens to judge, and no blocker found
};
const char* triage_outcome_name(TriageOutcome outcome);  // "SUCCESS", ...

struct TriageReport {
  TriageOutcome outcome = TriageOutcome::kUnproven;
  std::string conclusion;            // one sentence
  LogStage stage = LogStage::kNone;  // the furthest that was begun
  std::optional<LogEvent> blocker;   // the first
  std::vector<LogEvent> events;      // all that was recognised, in order
  std::vector<int32_t> tokens;       // of TOKEN_IDS; "..." is filled up with the last one, to 32
  std::optional<Verdict> stated;     // of the log's last VERDICT line
  std::optional<Verdict> judged;     // of the tokens and the output, by our rules
  std::string judged_reason;
  std::string scheduler_state;        // "COMPLETED", ...; empty = none seen
  std::optional<int> scheduler_exit;  // before the colon
  std::optional<int> program_exit;    // of an EXIT_CODE line
  std::vector<std::string> disagreements;
};

// The files belong to one job, in the order given.
TriageReport triage(const std::vector<LogFile>& files);

std::string to_text(const TriageReport& report);
std::string to_json(const TriageReport& report);

}  // namespace dsv4
