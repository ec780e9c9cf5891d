#include "engine/step_runner.h"

#include <algorithm>
#include <chrono>

namespace dsv4 {
namespace {

// Decode batches of a device with graphs are padded to these sizes, so that few graphs serve all of them.
int64_t padded_batch(int64_t rows) {
  for (const int64_t size : {1, 2, 4, 8, 16, 24, 32, 48, 64}) {
    if (rows <= size) return size;
  }
  return rows;
}

}  // namespace

const char* graph_mode_name(GraphMode mode) {
  switch (mode) {
    case GraphMode::kEager: return "eager";
    case GraphMode::kPiecewise: return "piecewise";
    case GraphMode::kFull: return "full";
  }
  return "";
}

std::optional<GraphMode> graph_mode_named(std::string_view name) {
  for (const GraphMode mode : {GraphMode::kEager, GraphMode::kPiecewise, GraphMode::kFull}) {
    if (name == graph_mode_name(mode)) return mode;
  }
  return std::nullopt;
}

void StepInput::clear() {
  for (std::vector<int32_t>* v : {&token_ids, &positions, &slots, &cu_rows, &seq_slots, &logits_rows}) v->clear();
  draws.clear();
}

Result<std::unique_ptr<StepRunner>> StepRunner::create(Model& model, KvCache& cache, Device& device, GraphMode mode) {
  std::unique_ptr<StepRunner> runner(new StepRunner(model, cache, device, mode));
  const ModelOptions& o = model.options();
  // token_ids, positions, slots, cu_rows (+1), seq_slots: at most one per row; logits_rows.
  const int64_t elements = 5 * (o.max_step_rows + 1) + o.max_logits_rows;
  DSV4_ASSIGN_OR_RETURN(runner->input_, device.allocate(4 * elements, "step input"));
  DSV4_ASSIGN_OR_RETURN(runner->draws_, device.allocate(static_cast<int64_t>(sizeof(Draw)) * o.max_logits_rows, "step input"));
  DSV4_ASSIGN_OR_RETURN(runner->tokens_, device.allocate(4 * o.max_logits_rows, "step output"));
  runner->staging_.resize(static_cast<size_t>(elements));
  return runner;
}

Status StepRunner::launch(const StepView& view, bool drawn, StepObserver* observer) {
  DSV4_ASSIGN_OR_RETURN(const Matrix<const float> logits, model_.forward(view, cache_, observer));
  logits_ = logits.data;
  const Vector<int32_t> tokens{tokens_.as<int32_t>(), logits.rows};
  DSV4_RETURN_IF_ERROR(run_op("argmax", device_.context(), device_.ops().argmax, ArgmaxArgs{logits, tokens}));
  if (!drawn) return ok_status();
  return run_op("sample", device_.context(), device_.ops().sample, SampleArgs{logits, draws_.as<Draw>(), tokens});
}

Result<StepOutput> StepRunner::run(const StepInput& input, bool want_logits, StepObserver* observer) {
  const int64_t rows = static_cast<int64_t>(input.token_ids.size()), seqs = static_cast<int64_t>(input.seq_slots.size());
  const int64_t wanted = static_cast<int64_t>(input.logits_rows.size());
  const ModelOptions& o = model_.options();
  if (rows > o.max_step_rows || wanted > o.max_logits_rows) {
    return invalid_argument("step: " + std::to_string(rows) + " rows and " + std::to_string(wanted) + " logits rows, at most " +
                            std::to_string(o.max_step_rows) + " and " + std::to_string(o.max_logits_rows) + " fit");
  }
  const bool use_graph = mode_ != GraphMode::kEager && observer == nullptr && rows == seqs && wanted == rows;
  const int64_t padded = use_graph ? std::min({padded_batch(rows), o.max_step_rows, o.max_logits_rows}) : rows;
  const int64_t all_seqs = seqs + padded - rows, all_wanted = wanted + padded - rows;

  // Fixed places: array i begins at i * (max_step_rows + 1), whatever the step's size. A padding row is a sequence of its own at
  // position -1: it touches no cache.
  const int64_t stride = o.max_step_rows + 1;
  const auto place = [&](int64_t array, const std::vector<int32_t>& values, int64_t size, int32_t padding) {
    int32_t* out = staging_.data() + array * stride;
    std::copy(values.begin(), values.end(), out);
    std::fill(out + values.size(), out + size, padding);
  };
  place(0, input.token_ids, padded, -1);
  place(1, input.positions, padded, -1);
  place(2, input.slots, padded, 0);
  place(3, input.cu_rows, seqs + 1, 0);
  for (int64_t s = seqs + 1; s <= all_seqs; ++s) staging_[static_cast<size_t>(3 * stride + s)] = static_cast<int32_t>(rows + s - seqs);
  place(4, input.seq_slots, all_seqs, 0);
  place(5, input.logits_rows, all_wanted, -1);
  DSV4_RETURN_IF_ERROR(cache_.upload_tables());
  DSV4_RETURN_IF_ERROR(device_.upload(input_.as<void>(), staging_.data(), 4 * (5 * stride + all_wanted)));

  // Padding rows, and those whose logits go to the host, have temperature 0.
  const bool drawn = std::any_of(input.draws.begin(), input.draws.end(), [](const Draw& d) { return d.temperature > 0; });
  if (drawn) {
    draw_staging_ = input.draws;
    draw_staging_.resize(static_cast<size_t>(all_wanted));
    DSV4_RETURN_IF_ERROR(device_.upload(draws_.as<void>(), draw_staging_.data(), static_cast<int64_t>(sizeof(Draw)) * all_wanted));
  }

  const int32_t* base = input_.as<int32_t>();
  StepView view{{base + stride, base + 2 * stride, base + 3 * stride, base + 4 * stride, padded, all_seqs}, {base, padded}, {base + 5 * stride, all_wanted}};
  // Devices on host memory have no graphs.
  if (device_.info().host_memory && rows > 0) view.longest = *std::max_element(input.positions.begin(), input.positions.end()) + 1;
  if (use_graph) {
    std::unique_ptr<StepGraph>& graph = graphs_[{padded, all_seqs, all_wanted, drawn}];
    if (graph == nullptr) {
      const CaptureMode how = mode_ == GraphMode::kPiecewise ? CaptureMode::kPieces : CaptureMode::kWhole;
      DSV4_ASSIGN_OR_RETURN(graph, device_.capture([&] { return launch(view, drawn, nullptr); }, how));
      if (graph == nullptr) mode_ = GraphMode::kEager;  // this device has none
    }
    DSV4_RETURN_IF_ERROR(graph != nullptr ? graph->launch() : launch(view, drawn, nullptr));
  } else {
    DSV4_RETURN_IF_ERROR(launch(view, drawn, observer));
  }

  StepOutput out;
  if (wanted == 0) return out;  // nothing to wait for: the next chunk of a prompt is prepared while this one is computed
  out.tokens.resize(static_cast<size_t>(wanted));
  const auto queued = std::chrono::steady_clock::now();
  DSV4_RETURN_IF_ERROR(device_.download(out.tokens.data(), tokens_.as<void>(), 4 * wanted));
  if (want_logits) {
    const int64_t vocab = model_.config().vocab_size;
    out.logits.resize(static_cast<size_t>(wanted * vocab));
    DSV4_RETURN_IF_ERROR(device_.download(out.logits.data(), logits_, 4 * wanted * vocab));
  }
  wait_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - queued).count();
  return out;
}

}  // namespace dsv4
