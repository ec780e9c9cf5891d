// Saved states on disk: a directory of files, each one state and the tokens it stands after. Survives the process; what a state's bytes
// mean is the caller's business, told apart by `identity` (model, numerics, cache layout).
//
// A file is written whole beside its name and then renamed, so readers see all of it or nothing. It carries hashes of its head and of its
// bytes. Files that are damaged, or of another identity, are left alone with a log line and never used; a damaged one is replaced when its
// state is written again. The least recently used files of this identity go when they take more than max_bytes.
//
// Any thread may call. Writing happens on a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "cache/prefix_tree.h"

namespace dsv4 {

struct PrefixStoreOptions {
  std::string directory;  // made when it is missing
  int64_t max_bytes = int64_t{8} << 30;
  std::string identity;  // states of another identity are not ours
};

class PrefixStore {
 public:
  // Reads the heads of the directory's files. Error: kIo when the directory cannot be made or read.
  static Result<std::unique_ptr<PrefixStore>> open(const PrefixStoreOptions& options);
  ~PrefixStore();  // writes what is queued
  PrefixStore(const PrefixStore&) = delete;
  PrefixStore& operator=(const PrefixStore&) = delete;

  // As PrefixTree's.
  std::optional<PrefixTree::Match> find(std::span<const int32_t> tokens);
  bool contains(std::span<const int32_t> tokens) const;
  int64_t shared(std::span<const int32_t> tokens) const;

  // The bytes of a state that find() named; it becomes the most recently used, also for later processes. Error: it went meanwhile, or its
  // file is damaged; then it is forgotten.
  Result<std::string> read(int32_t id);
  // Queues a state. Passed over: one that is there, one larger than max_bytes, and any while the queue holds kMaxQueuedBytes.
  void write(std::vector<int32_t> tokens, std::string state);
  // Waits until the queue is empty.
  void flush();

  struct Stats {
    int64_t states = 0, bytes = 0;                  // in files of this identity
    int64_t written = 0, dropped = 0, damaged = 0;  // since open; damaged: files that were not what they should be
  };
  Stats stats() const;

  static constexpr int64_t kMaxQueuedBytes = int64_t{1} << 30;

 private:
  struct Entry {
    std::string path;
    int64_t bytes = 0;
  };
  struct Job {
    std::vector<int32_t> tokens;
    std::string state;
  };

  explicit PrefixStore(PrefixStoreOptions options) : options_(std::move(options)) {}
  Status scan();
  void work();
  void write_file(const Job& job);
  void forget(int32_t id);  // the entry, not the file
  std::string path_of(std::span<const int32_t> tokens) const;

  const PrefixStoreOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  PrefixTree tree_;
  std::unordered_map<int32_t, Entry> entries_;
  int32_t next_id_ = 0;
  Stats stats_;
  std::deque<Job> queue_;
  int64_t queued_bytes_ = 0;
  bool writing_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace dsv4
