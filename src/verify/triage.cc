#include "verify/triage.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/json.h"
#include "verify/triage_patterns.h"

namespace dsv4 {
namespace {

constexpr size_t kShownBytes = 160;
constexpr size_t kFilledTokens = 32;

bool contains(std::string_view line, std::string_view needle) { return line.find(needle) != std::string_view::npos; }

std::string shorten(std::string_view line) {
  size_t begin = 0;
  while (begin < line.size() && (line[begin] == ' ' || line[begin] == '\t')) ++begin;
  line.remove_prefix(begin);
  return line.size() <= kShownBytes ? std::string(line) : std::string(line.substr(0, kShownBytes)) + "...";
}

// Server logs put "(EngineCore pid=12) ERROR 11-29 10:00:00 [core.py:1] " and the like before a traceback's lines.
std::string_view without_prefix(std::string_view line) {
  if (line.starts_with("(")) {
    if (const size_t close = line.find(") "); close != std::string_view::npos && close < 60) line.remove_prefix(close + 2);
  }
  for (const std::string_view level : {"ERROR ", "CRITICAL ", "WARNING ", "INFO "}) {
    if (!line.starts_with(level)) continue;
    if (const size_t close = line.find("] "); close != std::string_view::npos && close < 100) line.remove_prefix(close + 2);
  }
  return line;
}

// "ValueError: ..." or "pkg.mod.SomeError: ...": the line that ends a traceback.
bool is_exception_line(std::string_view line) {
  if (line.empty() || line[0] == ' ' || line[0] == '\t') return false;
  size_t i = 0;
  while (i < line.size() && (std::isalnum(static_cast<unsigned char>(line[i])) || line[i] == '_' || line[i] == '.')) ++i;
  if (i == 0 || (i < line.size() && line[i] != ':')) return false;
  const std::string_view name = line.substr(0, i);
  return contains(name, "Error") || contains(name, "Exception") || contains(name, "Interrupt") || name == "SystemExit";
}

// "dsv4 verify golden: MESSAGE": a command of this engine that ended.
bool is_command_error(std::string_view line) {
  const size_t colon = line.find(": ");
  if (!line.starts_with("dsv4 ") || colon == std::string_view::npos || colon > 40) return false;
  return std::all_of(line.begin(), line.begin() + static_cast<int64_t>(colon),
                     [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == ' ' || c == '-'; });
}

std::optional<int> number_after(std::string_view line, std::string_view key) {
  const size_t at = line.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  line.remove_prefix(at + key.size());
  while (!line.empty() && line[0] == ' ') line.remove_prefix(1);
  int value = 0;
  const auto parsed = std::from_chars(line.data(), line.data() + line.size(), value);
  return parsed.ec == std::errc() ? std::optional(value) : std::nullopt;
}

std::vector<int32_t> parse_ids(std::string_view line) {
  std::vector<int32_t> out;
  const size_t open = line.find('['), close = line.find(']');
  if (open == std::string_view::npos) return out;
  std::string_view list = line.substr(open + 1, close == std::string_view::npos ? std::string_view::npos : close - open - 1);
  while (!list.empty()) {
    int32_t value = 0;
    const auto parsed = std::from_chars(list.data(), list.data() + list.size(), value);
    if (parsed.ec == std::errc()) {
      out.push_back(value);
      list.remove_prefix(static_cast<size_t>(parsed.ptr - list.data()));
    } else if (list.starts_with("...") && !out.empty()) {
      while (out.size() < kFilledTokens) out.push_back(out.back());
      list.remove_prefix(3);
    } else {
      list.remove_prefix(1);
    }
  }
  return out;
}

// The text inside OUTPUT_REPR's quotes; escapes of Python's repr are undone where they matter.
std::string parse_repr(std::string_view line) {
  const size_t at = line.find("OUTPUT_REPR:");
  std::string_view rest = line.substr(at + 12);
  while (!rest.empty() && rest[0] == ' ') rest.remove_prefix(1);
  if (rest.size() >= 2 && (rest[0] == '\'' || rest[0] == '"'))
    rest = rest.substr(1, rest.rfind(rest[0]) == 0 ? std::string_view::npos : rest.rfind(rest[0]) - 1);
  std::string out;
  for (size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] != '\\' || i + 1 >= rest.size()) {
      out += rest[i];
      continue;
    }
    const char c = rest[++i];
    int code = 0;
    if (c == 'x' && i + 2 < rest.size() && std::from_chars(rest.data() + i + 1, rest.data() + i + 3, code, 16).ec == std::errc()) {
      out += static_cast<char>(code);
      i += 2;
    } else {
      out += c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
    }
  }
  return out;
}

std::optional<LogStage> stage_from_name(std::string_view name) {
  for (const LogStage s : {LogStage::kEnv, LogStage::kConfig, LogStage::kLoad, LogStage::kEngine, LogStage::kGenerate}) {
    if (name == log_stage_name(s)) return s;
  }
  return std::nullopt;
}

class Reader {
 public:
  TriageReport report;

  void read(const LogFile& file) {
    file_ = file.name;
    number_ = 0;
    block_ = Block::kNone;
    std::string_view rest = file.text;
    while (!rest.empty()) {
      const size_t end = rest.find('\n');
      std::string_view line = rest.substr(0, end);
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
      if (line.ends_with('\r')) line.remove_suffix(1);
      ++number_;
      take(without_prefix(line));
    }
    end_block();
  }

  void conclude() {
    judge_tokens();
    compare_states();
    const bool sound = (report.judged ? *report.judged == Verdict::kCoherent : report.stated == Verdict::kCoherent) &&
                       report.stated.value_or(Verdict::kCoherent) == Verdict::kCoherent;
    const bool tokens_seen = report.judged || report.stated;
    if (tokens_seen && sound && report.blocker && before_verdict_) {
      // The run went on to sound tokens: whatever it was, it did not block.
      for (LogEvent& e : report.events) {
        if (e.kind == LogKind::kBlocker) e.kind = LogKind::kBackground;
      }
      report.blocker.reset();
    }
    if (report.blocker) {
      report.outcome = TriageOutcome::kBlocked;
      report.conclusion =
          fmt::format("blocked in stage {} by line {}: {}", log_stage_name(report.blocker->stage), report.blocker->line, report.blocker->meaning);
    } else if (tokens_seen && !sound) {
      report.outcome = TriageOutcome::kRefused;
      const Verdict v = report.judged && *report.judged != Verdict::kCoherent ? *report.judged : *report.stated;
      report.conclusion =
          fmt::format("tokens were generated and refused: {}{}", verdict_name(v), report.judged_reason.empty() ? "" : " (" + report.judged_reason + ")");
    } else if (tokens_seen && report.disagreements.empty()) {
      report.outcome = TriageOutcome::kSuccess;
      report.conclusion = "the tokens are coherent, and nothing contradicts it";
    } else if (tokens_seen) {
      report.outcome = TriageOutcome::kUnproven;
      report.conclusion = "the tokens look coherent, but " + report.disagreements[0];
    } else {
      report.conclusion = fmt::format("no tokens and no blocker: stage {} was reached, and that proves nothing about tokens", log_stage_name(report.stage));
    }
  }

 private:
  enum class Block : uint8_t { kNone, kMain, kBackground, kUsage, kIgnored };

  void event(LogKind kind, LogStage stage, std::string_view line, std::string_view meaning) {
    LogEvent e{file_, number_, kind, stage == LogStage::kNone ? report.stage : stage, shorten(line), std::string(meaning)};
    if (kind == LogKind::kBlocker) {
      if (report.blocker || shut_down_) {
        e.kind = shut_down_ ? LogKind::kNoise : LogKind::kConsequence;
      } else {
        report.blocker = e;
        before_verdict_ = !report.stated;
      }
    }
    report.events.push_back(std::move(e));
  }

  void reach(LogStage stage) {
    if (stage > report.stage) report.stage = stage;
  }

  void take(std::string_view line) {
    if (block_ != Block::kNone && in_block(line)) return;
    if (contains(line, "Exception in thread")) return open_block(contains(line, "_report_usage_worker") ? Block::kUsage : Block::kBackground, line);
    if (contains(line, "Exception ignored in")) return open_block(Block::kIgnored, line);
    if (contains(line, "Traceback (most recent call last)")) return open_block(Block::kMain, line);
    if (contains(line, "### STAGE:")) return take_stage(line);
    if (take_scheduler(line)) return;
    if (is_command_error(line) && !report.blocker) {
      const LogPattern* known = match_line(line);
      return event(LogKind::kBlocker, known != nullptr ? known->stage : LogStage::kNone, line,
                   known != nullptr ? known->meaning : "dsv4 ended with this error");
    }
    if (const LogPattern* p = match_line(line)) take_pattern(*p, line);
  }

  void take_pattern(const LogPattern& p, std::string_view line) {
    if (p.kind == LogKind::kProgress || p.kind == LogKind::kState) reach(p.stage);
    event(p.kind, p.stage, line, p.meaning);
    if (p.needle == "TOKEN_IDS:") report.tokens = parse_ids(line.substr(line.find("TOKEN_IDS:")));
    if (p.needle == "OUTPUT_REPR:") output_ = parse_repr(line);
    if (p.needle == "EXIT_CODE:") report.program_exit = number_after(line, "EXIT_CODE:");
    if (p.needle == "FINISH_REASON:") finished_by_eos_ = contains(line, "eos") || contains(line, "stop");
    if (p.needle == "VERDICT:") {
      std::string_view word = line.substr(line.find("VERDICT:") + 8);
      while (!word.empty() && word[0] == ' ') word.remove_prefix(1);
      report.stated = verdict_from_name(word.substr(0, word.find_first_of(" (")));
      shut_down_ = report.stated.has_value();
    }
  }

  void take_stage(std::string_view line) {
    std::string_view rest = line.substr(line.find("### STAGE:") + 10);
    while (!rest.empty() && rest[0] == ' ') rest.remove_prefix(1);
    const auto stage = stage_from_name(rest.substr(0, rest.find(' ')));
    if (!stage) return;
    reach(*stage);
    if (contains(rest, " FAILED")) return event(LogKind::kBlocker, *stage, line, "this stage failed; its message says why");
    if (rest.find(' ') == std::string_view::npos) event(LogKind::kProgress, *stage, line, "the stage began");
  }

  // "JobID|State|ExitCode|..." rows; the row without a suffix is the job's.
  bool take_scheduler(std::string_view line) {
    const size_t a = line.find('|');
    if (a == std::string_view::npos || a == 0 ||
        !std::all_of(line.begin(), line.begin() + static_cast<int64_t>(a), [](char c) { return std::isdigit(static_cast<unsigned char>(c)) || c == '_'; })) {
      return contains(line, "JobID|State|ExitCode") ||
             (a != std::string_view::npos && (contains(line.substr(0, a), ".batch") || contains(line.substr(0, a), ".extern")));
    }
    const size_t b = line.find('|', a + 1);
    if (b == std::string_view::npos) return false;
    report.scheduler_state = std::string(line.substr(a + 1, line.find_first_of(" |", a + 1) - a - 1));
    report.scheduler_exit = number_after(line.substr(b), "|");
    event(LogKind::kState, LogStage::kNone, line, "the scheduler's word; it says nothing about tokens");
    return true;
  }

  void open_block(Block kind, std::string_view line) {
    end_block();
    block_ = kind;
    saw_frames_ = contains(line, "Traceback");
    if (kind == Block::kIgnored) event(LogKind::kNoise, LogStage::kNone, line, "a destructor or clean-up at interpreter exit");
  }

  // True when the line belongs to the block; its exception line ends it.
  bool in_block(std::string_view line) {
    if (contains(line, "Traceback (most recent call last)")) {
      if (block_ == Block::kMain) return false;  // a new one
      saw_frames_ = true;
      return true;
    }
    if (!is_exception_line(line)) {
      const bool indented = line.empty() || line[0] == ' ' || line[0] == '\t';
      if (indented || !saw_frames_) return true;
      // A line at the margin that is no exception's: another thread's output; the block goes on, but what it says still counts.
      return false;
    }
    const Block block = block_;
    block_ = Block::kNone;
    const LogPattern* known = match_line(line);
    const std::string_view meaning = known != nullptr ? known->meaning : std::string_view("the exception that ended the main path");
    const LogStage stage = known != nullptr ? known->stage : LogStage::kNone;
    if (block == Block::kUsage) {
      event(LogKind::kNoise, LogStage::kNone, line, "background usage report; also in good runs");
    } else if (block == Block::kIgnored || (known != nullptr && known->kind == LogKind::kNoise)) {
      event(LogKind::kNoise, LogStage::kNone, line, known != nullptr ? known->meaning : "raised in a destructor or clean-up at interpreter exit");
    } else if (block == Block::kBackground) {
      event(LogKind::kBackground, LogStage::kNone, line, "a background thread failed; whether it mattered the main path says");
    } else if (known != nullptr && known->kind == LogKind::kConsequence && report.blocker) {
      event(LogKind::kConsequence, stage, line, meaning);
    } else {
      event(LogKind::kBlocker, stage, line, meaning);
    }
    return true;
  }

  // A log that ends, or goes on, without an exception line.
  void end_block() {
    if (block_ == Block::kMain && !report.blocker)
      event(LogKind::kBlocker, LogStage::kNone, "Traceback without an exception line", "the log was cut off within a traceback");
    block_ = Block::kNone;
  }

  void judge_tokens() {
    if (report.tokens.empty()) return;
    VerdictInput in;
    in.tokens = report.tokens;
    in.bytes = output_.value_or("");
    in.has_text = output_.has_value();
    in.finish = finished_by_eos_ ? FinishReason::kEos : FinishReason::kLength;
    // A probe with a known answer may end early; its own verdict stands for that.
    if (report.stated == Verdict::kCoherent && finished_by_eos_) in.known_answer = in.bytes;
    const VerdictResult result = judge_output(in);
    report.judged = result.verdict;
    report.judged_reason = result.reason;
  }

  void compare_states() {
    auto& out = report.disagreements;
    const bool good_tokens = report.judged == Verdict::kCoherent, good_word = report.stated == Verdict::kCoherent;
    if (report.stated && report.judged && good_word != good_tokens) {
      out.push_back(
          fmt::format("the log's verdict is {}, its token ids are {}: {}", verdict_name(*report.stated), verdict_name(*report.judged), report.judged_reason));
    }
    const bool known = report.stated || report.judged, good = (!report.stated || good_word) && (!report.judged || good_tokens);
    if (report.scheduler_state == "COMPLETED" && known && !good)
      out.push_back("the job COMPLETED, but its output is refused: the exit code was lost, or nobody looked at the tokens");
    if (report.scheduler_state == "COMPLETED" && !known) out.push_back("the job COMPLETED, but no token of it is in the log");
    if (report.scheduler_state == "COMPLETED" && report.blocker && !known) out.push_back("the job COMPLETED, although the log has a blocker");
    if (report.scheduler_state == "FAILED" && known && good) out.push_back("the job FAILED, although its tokens are coherent");
    if (report.scheduler_exit && report.program_exit && *report.scheduler_exit != *report.program_exit) {
      out.push_back(fmt::format("the program exited with {}, the scheduler says {}", *report.program_exit, *report.scheduler_exit));
    }
    if (report.program_exit && known && (*report.program_exit == 0) != good) {
      out.push_back(fmt::format("the program exited with {}, its output is {}", *report.program_exit, good ? "coherent" : "refused"));
    }
  }

  std::string file_;
  int64_t number_ = 0;
  Block block_ = Block::kNone;
  bool saw_frames_ = false;
  bool shut_down_ = false;       // a verdict was printed: what follows is clean-up
  bool before_verdict_ = false;  // the blocker came before it
  bool finished_by_eos_ = false;
  std::optional<std::string> output_;
};

}  // namespace

const char* log_kind_name(LogKind kind) {
  constexpr const char* kNames[] = {"progress", "noise", "background", "BLOCKER", "consequence", "state"};
  return kNames[static_cast<size_t>(kind)];
}

const char* log_stage_name(LogStage stage) {
  constexpr const char* kNames[] = {"nothing", "env", "config", "load", "engine", "generate", "done"};
  return kNames[static_cast<size_t>(stage)];
}

const char* triage_outcome_name(TriageOutcome outcome) {
  constexpr const char* kNames[] = {"SUCCESS", "BLOCKED", "REFUSED", "UNPROVEN"};
  return kNames[static_cast<size_t>(outcome)];
}

TriageReport triage(const std::vector<LogFile>& files) {
  Reader reader;
  for (const LogFile& file : files) reader.read(file);
  reader.conclude();
  return std::move(reader.report);
}

std::string to_text(const TriageReport& r) {
  std::string out = fmt::format("{}: {}\nstage reached: {}\n", triage_outcome_name(r.outcome), r.conclusion, log_stage_name(r.stage));
  if (r.blocker) out += fmt::format("first blocker: {}:{}: {}\n", r.blocker->file, r.blocker->line, r.blocker->text);
  if (!r.tokens.empty())
    out += fmt::format("tokens: {}, by our rules {}{}\n", r.tokens.size(), r.judged ? verdict_name(*r.judged) : "not judged",
                       r.judged_reason.empty() ? "" : " (" + r.judged_reason + ")");
  if (r.stated) out += fmt::format("the log's verdict: {}\n", verdict_name(*r.stated));
  if (!r.scheduler_state.empty())
    out += fmt::format("scheduler: {}{}\n", r.scheduler_state, r.scheduler_exit ? fmt::format(", exit code {}", *r.scheduler_exit) : "");
  if (r.program_exit) out += fmt::format("program: exit code {}\n", *r.program_exit);
  for (const std::string& d : r.disagreements) out += "disagreement: " + d + "\n";
  for (const LogEvent& e : r.events) {
    if (e.kind == LogKind::kState || e.kind == LogKind::kProgress) continue;
    out += fmt::format("  {:<11} {}:{}: {}\n              {}\n", log_kind_name(e.kind), e.file, e.line, e.text, e.meaning);
  }
  return out;
}

std::string to_json(const TriageReport& r) {
  const auto event_json = [](const LogEvent& e) {
    return Json{{"file", e.file}, {"line", e.line},      {"kind", log_kind_name(e.kind)}, {"stage", log_stage_name(e.stage)},
                {"text", e.text}, {"meaning", e.meaning}};
  };
  Json events = Json::array();
  for (const LogEvent& e : r.events) events.push_back(event_json(e));
  Json out = {{"outcome", triage_outcome_name(r.outcome)}, {"conclusion", r.conclusion}, {"stage", log_stage_name(r.stage)}};
  out["blocker"] = r.blocker ? event_json(*r.blocker) : Json();
  out["tokens"] = r.tokens;
  out["stated_verdict"] = r.stated ? Json(verdict_name(*r.stated)) : Json();
  out["judged_verdict"] = r.judged ? Json(verdict_name(*r.judged)) : Json();
  out["judged_reason"] = r.judged_reason;
  out["scheduler_state"] = r.scheduler_state;
  out["scheduler_exit"] = r.scheduler_exit ? Json(*r.scheduler_exit) : Json();
  out["program_exit"] = r.program_exit ? Json(*r.program_exit) : Json();
  out["disagreements"] = r.disagreements;
  out["events"] = std::move(events);
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace dsv4
