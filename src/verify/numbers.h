// The few numbers that every comparison here is made of. All in double; NaN never compares as good.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dsv4 {

// |got - want| / |want| in the Euclidean norm. Sizes that differ give infinity; 0 against 0 is 0, anything else against 0 infinity;
// a NaN on either side gives NaN.
double relative_error(std::span<const float> got, std::span<const float> want);

// got . want / (|got| |want|); 0 when one of them is zero or the sizes differ.
double cosine(std::span<const float> got, std::span<const float> want);

// Index of the largest value, the lowest of equals (NaN is never the largest); -1 for no values.
int32_t argmax_of(std::span<const float> values);

// The middle value, or the mean of the two; NaN for none, and when any value is NaN.
double median(std::vector<double> values);

// The value below which a share p in [0, 1] of the sorted values lies, between neighbours by linear interpolation (the rule of
// NumPy's default). NaN for none, and when any value is NaN.
double quantile(std::vector<double> values, double p);

// log(sum(exp(values))).
double log_sum_exp(std::span<const float> values);

// sum_i p_i (log p_i - log q_i), p and q the softmax of the two rows of logits, in nats. Infinity when the sizes differ.
double kl_divergence(std::span<const float> p_logits, std::span<const float> q_logits);

}  // namespace dsv4
