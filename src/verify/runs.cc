#include "verify/runs.h"

#include <algorithm>
#include <limits>

namespace dsv4 {
namespace {

// Leaves exactly the next token of a list possible.
class ForcedTokens final : public TokenConstraint {
 public:
  explicit ForcedTokens(std::vector<int32_t> tokens) : tokens_(std::move(tokens)) {}

  Status mask(std::span<float> logits) override {
    if (next_ >= tokens_.size()) return invalid_argument("forced tokens: all " + std::to_string(tokens_.size()) + " have been given out");
    std::fill(logits.begin(), logits.end(), -std::numeric_limits<float>::infinity());
    logits[static_cast<size_t>(tokens_[next_])] = 0;
    return ok_status();
  }
  Status accept(int32_t) override {
    ++next_;
    return ok_status();
  }

 private:
  std::vector<int32_t> tokens_;
  size_t next_ = 0;
};

// rows x cols values of a device matrix, packed.
template <class T>
Status copy_rows(Device& device, const Matrix<const T>& m, std::vector<T>* out) {
  out->resize(static_cast<size_t>(m.rows * m.cols));
  if (m.rows == 0 || m.cols == 0) return ok_status();
  const int64_t row_bytes = m.cols * static_cast<int64_t>(sizeof(T));
  if (m.row_stride == m.cols) return device.download(out->data(), m.data, m.rows * row_bytes);
  for (int64_t r = 0; r < m.rows; ++r) DSV4_RETURN_IF_ERROR(device.download(out->data() + r * m.cols, m.row(r), row_bytes));
  return ok_status();
}

}  // namespace

Request greedy_request(std::vector<int32_t> prompt, int64_t max_new_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_new_tokens = max_new_tokens;
  return request;
}

Request forced_request(std::vector<int32_t> prompt, std::vector<int32_t> tokens) {
  Request request = greedy_request(std::move(prompt), static_cast<int64_t>(tokens.size()));
  request.ignore_eos = true;
  request.constraint = std::make_shared<ForcedTokens>(std::move(tokens));
  return request;
}

Status prefill_logits(Engine& engine, std::vector<int32_t> tokens, const LogitsSink& sink) {
  Request request = greedy_request(std::move(tokens), 0);
  request.logits_hook = sink;
  return generate(engine, std::move(request)).status();
}

Status forced_decode(Engine& engine, std::span<const int32_t> tokens, int64_t prefill, const LogitsSink& sink) {
  if (prefill < 1 || prefill > static_cast<int64_t>(tokens.size())) {
    return invalid_argument("forced decode: a prefill of " + std::to_string(prefill) + " of " + std::to_string(tokens.size()) + " tokens");
  }
  Request request;
  const auto begin = tokens.begin();
  if (prefill == static_cast<int64_t>(tokens.size())) return prefill_logits(engine, {begin, tokens.end()}, sink);
  // The last forced token is only drawn, never fed, so one more is asked for.
  std::vector<int32_t> forced(begin + prefill, tokens.end());
  forced.push_back(tokens.back());
  request = forced_request({begin, begin + prefill}, std::move(forced));
  request.logits_hook = sink;
  return generate(engine, std::move(request)).status();
}

Result<std::vector<Generation>> generate_together(Engine& engine, std::vector<Request> requests, const std::function<int64_t(size_t)>& steps_before) {
  std::vector<Generation> out(requests.size());
  std::vector<Status> errors(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    for (int64_t step = i > 0 && steps_before ? steps_before(i) : 0; step > 0; --step) DSV4_RETURN_IF_ERROR(engine.step());
    const auto id = engine.submit(std::move(requests[i]), [&out, &errors, i](const TokenOutput& o) {
      if (o.token >= 0) out[i].tokens.push_back(o.token);
      out[i].text += o.text;
      out[i].finish = o.finish;
      if (o.finish == FinishReason::kError) errors[i] = o.error;
      out[i].outputs.push_back(o);
    });
    if (!id.ok()) {
      while (!engine.idle()) (void)engine.step();  // the sinks refer to this frame
      return id.status();
    }
  }
  while (!engine.idle()) DSV4_RETURN_IF_ERROR(engine.step());
  for (const Status& error : errors) DSV4_RETURN_IF_ERROR(error);
  return out;
}

Status TensorTap::tensor(const char* name, int64_t layer, Matrix<const float> values) {
  if (!wants(name, layer)) return ok_status();
  DSV4_RETURN_IF_ERROR(copy_rows(device_, values, &floats_));
  return on_tensor(name, layer, values.rows, values.cols, floats_);
}

Status TensorTap::indices(const char* name, int64_t layer, Matrix<const int32_t> values) {
  if (!wants(name, layer)) return ok_status();
  DSV4_RETURN_IF_ERROR(copy_rows(device_, values, &ints_));
  return on_indices(name, layer, values.rows, values.cols, ints_);
}

}  // namespace dsv4
