#include "cache/prefix_store.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"

namespace dsv4 {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[8] = {'d', 's', 'v', '4', 'p', 'f', 'x', '1'};  // also tells the byte order of what follows
constexpr const char* kSuffix = ".prefix";
constexpr uint32_t kMaxIdentityBytes = 1 << 16;
constexpr uint32_t kMaxTokens = 1 << 24;

// A file: this, the identity, the tokens (int32), the state.
struct Head {
  char magic[8];
  uint64_t head_hash = 0;   // of all that lies between here and the state
  uint64_t state_hash = 0;  // of the state
  int64_t state_bytes = 0;
  uint32_t identity_bytes = 0;
  uint32_t num_tokens = 0;
};
static_assert(sizeof(Head) == 40);

struct StoredHead {
  Head head;
  std::string identity;
  std::vector<int32_t> tokens;
};

std::string_view bytes_of(std::span<const int32_t> tokens) { return {reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()}; }

uint64_t head_hash(const Head& h, std::string_view identity, std::span<const int32_t> tokens) {
  const std::string_view fields(reinterpret_cast<const char*>(&h.state_hash), sizeof(Head) - offsetof(Head, state_hash));
  return hash_bytes(bytes_of(tokens), hash_bytes(identity, hash_bytes(fields)));
}

Status damaged(const std::string& path, const std::string& what) { return io_error(path + ": " + what); }

// What stands before the state, checked.
Result<StoredHead> read_head(std::ifstream& file, const std::string& path) {
  StoredHead out;
  file.seekg(0, std::ios::end);
  const int64_t size = file.tellg();
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(&out.head), sizeof(Head))) return damaged(path, "too short for a saved state");
  const Head& h = out.head;
  if (std::memcmp(h.magic, kMagic, sizeof(kMagic)) != 0) return damaged(path, "not a saved state of this format");
  if (h.identity_bytes > kMaxIdentityBytes || h.num_tokens < 1 || h.num_tokens > kMaxTokens || h.state_bytes < 0 ||
      h.state_bytes != size - static_cast<int64_t>(sizeof(Head) + h.identity_bytes + 4 * uint64_t{h.num_tokens})) {
    return damaged(path, "its sizes do not add up");
  }
  out.identity.resize(h.identity_bytes);
  out.tokens.resize(h.num_tokens);
  if (!file.read(out.identity.data(), h.identity_bytes) || !file.read(reinterpret_cast<char*>(out.tokens.data()), 4 * int64_t{h.num_tokens})) {
    return damaged(path, "cannot be read");
  }
  if (head_hash(h, out.identity, out.tokens) != h.head_hash) return damaged(path, "its head is damaged");
  return out;
}

// "X.prefix.tmp.PID": left by a writer that did not come to its end.
bool is_leftover(const std::string& name) {
  const std::string mark = std::string(kSuffix) + ".tmp.";
  const size_t at = name.find(mark);
  if (at == std::string::npos) return false;
  const std::string pid = name.substr(at + mark.size());
  if (pid.empty() || pid.size() > 9 || pid.find_first_not_of("0123456789") != std::string::npos) return false;
  return ::kill(static_cast<pid_t>(std::stol(pid)), 0) != 0 && errno == ESRCH;
}

std::string hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace

Result<std::unique_ptr<PrefixStore>> PrefixStore::open(const PrefixStoreOptions& options) {
  if (options.max_bytes < 1) return invalid_argument("prefix cache: max_bytes is " + std::to_string(options.max_bytes) + ", it must be positive");
  if (options.identity.size() > kMaxIdentityBytes) return invalid_argument("prefix cache: the identity is too long");
  std::unique_ptr<PrefixStore> store(new PrefixStore(options));
  DSV4_RETURN_IF_ERROR(store->scan());
  store->thread_ = std::thread([raw = store.get()] { raw->work(); });
  return store;
}

PrefixStore::~PrefixStore() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Status PrefixStore::scan() {
  std::error_code error;
  fs::create_directories(options_.directory, error);
  if (error) return io_error("prefix cache: cannot make " + options_.directory + ": " + error.message());
  struct Found {
    fs::file_time_type used;
    std::string path;
    int64_t bytes = 0;
    std::vector<int32_t> tokens;
  };
  std::vector<Found> found;
  int64_t foreign = 0;
  for (fs::directory_iterator it(options_.directory, error), end; !error && it != end; it.increment(error)) {
    const std::string path = it->path().string(), name = it->path().filename().string();
    if (is_leftover(name)) {
      std::error_code ignored;
      fs::remove(it->path(), ignored);
      continue;
    }
    std::error_code problem;
    if (!name.ends_with(kSuffix) || !it->is_regular_file(problem)) continue;
    std::ifstream file(path, std::ios::binary);
    auto head = read_head(file, path);
    if (!head.ok()) {
      ++stats_.damaged;
      log_warning("prefix cache: ignored " + head.status().message());
      continue;
    }
    if (head->identity != options_.identity) {
      ++foreign;
      continue;
    }
    found.push_back({it->last_write_time(problem), path, static_cast<int64_t>(it->file_size(problem)), std::move(head->tokens)});
  }
  if (error) return io_error("prefix cache: cannot read " + options_.directory + ": " + error.message());
  if (foreign > 0) log_warning("prefix cache: ignored " + std::to_string(foreign) + " files of other models or settings in " + options_.directory);
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.used != b.used ? a.used < b.used : a.path < b.path; });
  for (Found& f : found) {
    if (tree_.contains(f.tokens)) continue;  // a copy under another name
    entries_[next_id_] = {f.path, f.bytes};
    tree_.insert(f.tokens, next_id_++);
    stats_.bytes += f.bytes;
    ++stats_.states;
  }
  return ok_status();
}

std::string PrefixStore::path_of(std::span<const int32_t> tokens) const {
  return options_.directory + "/" + hex(hash_bytes(options_.identity)) + "-" + hex(hash_bytes(bytes_of(tokens))) + kSuffix;
}

std::optional<PrefixTree::Match> PrefixStore::find(std::span<const int32_t> tokens) {
  std::lock_guard lock(mutex_);
  return tree_.find(tokens);
}

bool PrefixStore::contains(std::span<const int32_t> tokens) const {
  std::lock_guard lock(mutex_);
  return tree_.contains(tokens);
}

int64_t PrefixStore::shared(std::span<const int32_t> tokens) const {
  std::lock_guard lock(mutex_);
  return tree_.shared(tokens);
}

void PrefixStore::forget(int32_t id) {
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return;
  stats_.bytes -= entry->second.bytes;
  --stats_.states;
  tree_.erase(id);
  entries_.erase(entry);
}

Result<std::string> PrefixStore::read(int32_t id) {
  std::string path;
  std::vector<int32_t> tokens;
  {
    std::lock_guard lock(mutex_);
    const auto entry = entries_.find(id);
    if (entry == entries_.end()) return not_found("prefix cache: the state has gone");
    path = entry->second.path;
    tokens = tree_.tokens_of(id);
  }
  const auto state = [&]() -> Result<std::string> {
    std::ifstream file(path, std::ios::binary);
    DSV4_ASSIGN_OR_RETURN(const StoredHead head, read_head(file, path));
    if (head.identity != options_.identity || head.tokens != tokens) return damaged(path, "holds another state than it did");
    std::string bytes(static_cast<size_t>(head.head.state_bytes), '\0');
    if (!file.read(bytes.data(), head.head.state_bytes)) return damaged(path, "cannot be read");
    if (hash_bytes(bytes) != head.head.state_hash) return damaged(path, "its state is damaged");
    return bytes;
  }();
  if (!state.ok()) {
    log_warning("prefix cache: ignored " + state.status().message());
    std::lock_guard lock(mutex_);
    ++stats_.damaged;
    forget(id);
    return state;
  }
  ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // now: what a later process sorts by. A file that has gone meanwhile does not mind
  return state;
}

void PrefixStore::write(std::vector<int32_t> tokens, std::string state) {
  const int64_t bytes = static_cast<int64_t>(state.size());
  {
    std::lock_guard lock(mutex_);
    if (tree_.contains(tokens)) return;
    if (bytes > options_.max_bytes || queued_bytes_ + bytes > kMaxQueuedBytes) {
      ++stats_.dropped;
      return;
    }
    queued_bytes_ += bytes;
    queue_.push_back({std::move(tokens), std::move(state)});
  }
  changed_.notify_all();
}

void PrefixStore::flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !writing_; });
}

void PrefixStore::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !queue_.empty() || stop_; });
    if (queue_.empty()) return;
    const Job job = std::move(queue_.front());
    queue_.pop_front();
    writing_ = true;
    lock.unlock();
    write_file(job);
    lock.lock();
    writing_ = false;
    queued_bytes_ -= static_cast<int64_t>(job.state.size());
    changed_.notify_all();
  }
}

void PrefixStore::write_file(const Job& job) {
  Head head;
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
  head.state_hash = hash_bytes(job.state);
  head.state_bytes = static_cast<int64_t>(job.state.size());
  head.identity_bytes = static_cast<uint32_t>(options_.identity.size());
  head.num_tokens = static_cast<uint32_t>(job.tokens.size());
  head.head_hash = head_hash(head, options_.identity, job.tokens);
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
  bytes += options_.identity;
  bytes += bytes_of(job.tokens);
  bytes += job.state;
  const int64_t size = static_cast<int64_t>(bytes.size());
  std::vector<std::string> old;
  {
    std::lock_guard lock(mutex_);
    if (tree_.contains(job.tokens)) return;
    if (size > options_.max_bytes) {
      ++stats_.dropped;
      return;
    }
    while (stats_.bytes + size > options_.max_bytes) {  // before writing: the limit holds at any time
      const int32_t id = *tree_.oldest();
      old.push_back(entries_.at(id).path);
      forget(id);
    }
  }
  for (const std::string& path : old) std::remove(path.c_str());
  const std::string path = path_of(job.tokens);
  const Status written = write_file_atomic(path, bytes);
  std::lock_guard lock(mutex_);
  if (!written.ok()) {
    ++stats_.dropped;
    log_warning("prefix cache: " + written.message());
    return;
  }
  entries_[next_id_] = {path, size};
  tree_.insert(job.tokens, next_id_++);
  stats_.bytes += size;
  ++stats_.states;
  ++stats_.written;
}

PrefixStore::Stats PrefixStore::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace dsv4
