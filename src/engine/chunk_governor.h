// How many prompt rows may join a step in which others decode, so that their next token comes not much later than without. It learns
// from the steps' times. What a request gets never depends on chunks; only how long others wait does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dsv4 {

class ChunkGovernor {
 public:
  // A step's rows and how long it took.
  void observe(int64_t decode_rows, int64_t prompt_rows, double seconds);
  // Prompt rows of the next step that also decodes: between kLeast and `chunk`, so that it takes about kSlowdown times a step that only
  // decodes. `chunk` as long as nothing is known.
  int64_t limit(int64_t chunk) const;

  static constexpr double kSlowdown = 2;  // a prompt gets half of the time while others decode
  static constexpr int64_t kLeast = 8;    // a prompt goes on in any case

 private:
  // The median of the last values. Not a mean: a process that starts beside us disturbs ten steps in a row, and while a prompt is computed no
  // step only decodes and could correct what was learned then.
  class Recent {
   public:
    void add(double value) { values_[static_cast<size_t>(count_++ % kMost)] = value; }
    void clear() { count_ = 0; }
    bool known() const { return count_ > 0; }
    double median() const;

   private:
    static constexpr int64_t kMost = 31;
    std::array<double, kMost> values_{};
    int64_t count_ = 0;
  };

  Recent decode_seconds_, prompt_row_seconds_;
  bool from_mixed_ = false;  // the latter comes from steps that also decoded; prompts alone have cheaper rows
};

}  // namespace dsv4
