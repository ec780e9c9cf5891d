// The truth of compressor_step: plain softmax-weighted means over the tokens of a window, in double, and what a running float32 softmax may
// make of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "ops/testing/judge.h"

namespace dsv4::optest {

// Softmax-weighted mean of one channel over the tokens of a window, in their order.
struct Channel {
  double max = -std::numeric_limits<double>::infinity();
  int maxima = 0;     // tokens that raised it
  double widest = 0;  // largest magnitude of a gate
  std::vector<double> gate, value;

  void add(double g, double v) {
    if (g > max) {
      max = g;
      ++maxima;
    }
    widest = std::max(widest, std::fabs(g));
    gate.push_back(g);
    value.push_back(v);
  }
  struct Result {
    double max, sum, weighted, magnitude;
    double units;  // relative error of each weight, in units: of the sum relative to the sum, of `weighted` relative to `magnitude`
  };
  Result result() const {
    Result r{max, 0, 0, 0, 0};
    for (size_t i = 0; i < gate.size(); ++i) {
      const double w = std::exp(gate[i] - max);
      r.sum += w;
      r.weighted += w * value[i];
      r.magnitude += w * std::fabs(value[i]);
    }
    // A weight is the product of one exponential per raised maximum: each has 4 units of its own and a product; the differences of gates in
    // their arguments are rounded, together at most twice the widest gate each way. Then n sums in a row (2 sqrt(n / 3) units each way).
    r.units = 4 * widest + 6 * maxima + 8 + 2 * std::sqrt(static_cast<double>(gate.size()));
    return r;
  }
};

// One token of a sequence: its row of kv and gate.
struct Token {
  const float* kv = nullptr;
  const float* gate = nullptr;
};

class Windows {
 public:
  Windows(int32_t ratio, int64_t head_dim, const std::vector<float>& ape) : ratio_(ratio), ape_(ape), dim_(head_dim), width_(ratio == 4 ? 2 * dim_ : dim_) {}

  // Channel d over tokens [first, end) of one slot, their half `half` (ratio 4) of the row.
  void feed(Channel& channel, const std::map<int32_t, Token>& tokens, int32_t first, int32_t end, int64_t half, int64_t d) const {
    for (int32_t t = std::max(first, 0); t < end; ++t) {
      const Token& token = tokens.at(t);
      const int64_t i = half * dim_ + d;
      const float g = token.gate[i] + ape_[static_cast<size_t>(t % ratio_ * width_ + i)];  // one float32 sum
      channel.add(g, token.kv[i]);
    }
  }

  // The accumulator `plane` (0 = the row in hand, 1 = the first-half part of the next) after all tokens before `end`.
  Channel accumulator(const std::map<int32_t, Token>& tokens, int32_t end, int plane, int64_t d) const {
    Channel channel;
    const int32_t start = end / ratio_ * ratio_;  // of the window in hand
    if (ratio_ == 128) {
      feed(channel, tokens, start, end, 0, d);
    } else if (plane == 1) {
      feed(channel, tokens, start, end, 0, d);
    } else {
      feed(channel, tokens, start - 4, start, 0, d);
      feed(channel, tokens, start, end, 1, d);
    }
    return channel;
  }

  // Channel d of row j, from its tokens.
  Channel row(const std::map<int32_t, Token>& tokens, int32_t j, int64_t d) const {
    Channel channel;
    if (ratio_ == 128) {
      feed(channel, tokens, 128 * j, 128 * (j + 1), 0, d);
    } else {
      feed(channel, tokens, 4 * (j - 1), 4 * j, 0, d);
      feed(channel, tokens, 4 * j, 4 * (j + 1), 1, d);
    }
    return channel;
  }

 private:
  int32_t ratio_;
  const std::vector<float>& ape_;
  int64_t dim_, width_;
};

}  // namespace dsv4::optest
