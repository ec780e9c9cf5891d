// What every operator shares. An operator is: Args (views and scalars, pointers of the device that runs it), check(args) = the
// whole contract without touching a device, cost(args) = the least bytes and operations, NAME_reference = plain loops on the host.
//
// Rules that hold for all of them:
// - Activations are float32. A row's result depends only on that row's inputs: never on the batch, the chunk or the thread count.
// - A row with position < 0 is padding: it reads and writes no cache or state, and its outputs are zero.
// - Zero rows is valid and does nothing. Outputs do not alias inputs unless the header says so.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "tensor/view.h"

namespace dsv4 {

class ThreadPool;

struct OpCost {
  int64_t bytes = 0;  // each input read once, each output written once
  int64_t flops = 0;  // a multiply-add counts two
};

// Sees each operator run (profiler). Called on the thread that launches.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void before(const char* op, const OpCost& cost) = 0;
  virtual void after(const char* op) = 0;
};

// What a backend's operators run on: host threads, or a device's stream. Backends derive from it and downcast.
struct OpContext {
  virtual ~OpContext() = default;
  OpObserver* observer = nullptr;
};

// Host operators (the reference and the CPU backend): a pool of threads.
struct HostContext : OpContext {
  ThreadPool* pool = nullptr;
};

// Rows of a step grouped by sequence. Rows of one sequence are neighbours, in ascending positions.
struct SequenceRows {
  const int32_t* positions = nullptr;  // [T]; -1 = padding
  const int32_t* slots = nullptr;      // [T] cache slot of each row; a padding row's is a valid slot (0 will do) that nothing is read from or written to
  const int32_t* cu_rows = nullptr;    // [S + 1] first row of each sequence; cu_rows[S] = T
  const int32_t* seq_slots = nullptr;  // [S]
  int64_t num_rows = 0;                // T
  int64_t num_seqs = 0;                // S
};

// Rounding of activations before a product with an FP8 or MXFP4 weight (tensor/rounding.h): none, E4M3 under a scale per 128 values, BF16.
enum class ActivationRounding : uint8_t { kNone, kE4M3, kBF16 };

// Rounding of a cache row's no-rope values (the rotated ones follow the cache's format).
enum class CacheRounding : uint8_t { kNone, kE4M3 };

// Runs one slot of an operator table: checks the contract, tells the observer, calls.
template <class Args>
Status run_op(const char* name, OpContext& context, Status (*slot)(OpContext&, const Args&), const Args& args) {
  DSV4_CHECK(slot != nullptr, name);
  DSV4_RETURN_IF_ERROR(check(args));
  if (context.observer == nullptr) return slot(context, args);
  context.observer->before(name, cost(args));
  Status status = slot(context, args);
  context.observer->after(name);
  return status;
}

// Helpers of check(): "op: name is missing" unless p is set.
Status check_present(const char* op, const char* name, const void* p);

}  // namespace dsv4
