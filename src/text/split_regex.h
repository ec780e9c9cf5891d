// The pre-tokenizer's regular expressions, run by PCRE2 with the meaning that the Oniguruma library gives them (the one that
// tokenizer.json files are written for).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv4 {

// A compiled pattern; immutable, shared by threads.
class SplitRegex {
 public:
  // Errors: kInvalidData for a malformed pattern; kUnsupported for constructs that the two libraries read differently (\w, \b,
  // ^, $, nested classes, ...) and for patterns that can match the empty string. \s and \S are taken as Unicode's White_Space.
  static Result<SplitRegex> compile(const std::string& pattern);

  // What one thread needs while it matches: match data and a stack for compiled code. Reusable for any SplitRegex.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class SplitRegex;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  // Cuts `text` into its matches and the stretches between them, in order, none empty; appends them to `pieces`. The pattern
  // sees `text` alone: look-around stops at its ends. Precondition: valid UTF-8. Errors: kResourceLimit (PCRE2's match limits).
  Status split(std::string_view text, Scratch* scratch, std::vector<std::string_view>* pieces) const;

 private:
  struct Code;
  explicit SplitRegex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}

  std::shared_ptr<const Code> code_;
};

}  // namespace dsv4
