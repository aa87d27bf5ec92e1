// What an accelerator has beside kernels: streams and events, syncs, memory that ends, graphs that are captured, and an
// error that stays. Values are computed at once, on the host; *when* they are there is kept by clocks: each stream
// counts its kernels and knows how far into every other it has waited. So events become ready only when their stream
// has got there, and a kernel that reads what another stream may still be writing is found without luck.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace npu {

constexpr auto kType = c10::DeviceType::PrivateUse1;
inline c10::Device here() { return c10::Device(kType, 0); }

using Clock = std::vector<int64_t>;  // by stream: how many of its kernels

inline int64_t& at(Clock& clock, size_t stream) {
  if (clock.size() <= stream) clock.resize(stream + 1, 0);
  return clock[stream];
}

inline void join(Clock& clock, const Clock& other) {
  for (size_t i = 0; i < other.size(); ++i) at(clock, i) = std::max(at(clock, i), other[i]);
}

struct Access {
  size_t begin, end;  // bytes
  int64_t stream, time;
  bool is_write;
};

struct Block {  // of memory
  void* data;
  size_t n_bytes;
  std::vector<Access> accesses;
};

// By stream and kind, as if all between them had been accessed too.
inline std::vector<Access> together(const std::vector<Access>& all) {
  std::vector<Access> found;
  for (const auto& each : all) {
    Access* same = nullptr;
    for (auto& other : found)
      if (other.stream == each.stream && other.is_write == each.is_write) same = &other;
    if (same == nullptr) {
      found.push_back(each);
    } else {
      same->begin = std::min(same->begin, each.begin), same->end = std::max(same->end, each.end);
      same->time = std::max(same->time, each.time);
    }
  }
  return found;
}

struct Event {
  int64_t stream = 0;
  Clock clock;
};

inline thread_local int64_t current_stream = 0;
inline thread_local int n_quiet = 0;  // what runs is not the program's: a fallback that copies, a collective
struct Quiet {
  Quiet() { ++n_quiet; }
  ~Quiet() { --n_quiet; }
};

constexpr size_t MANY = 64;      // accesses to one block, each to another part of it, that are remembered apart
constexpr int64_t AT_ONCE = 64;  // kernels that the device does while the host asks once whether it is ready
constexpr int ASSERTED = 710;    // cudaErrorAssert

struct Device {
  std::recursive_mutex mutex;
  std::vector<std::pair<std::string, int64_t>> counts;  // by kind of sync, and "kernel"
  std::vector<Clock> streams = std::vector<Clock>(1);
  Clock done, host;  // how far each stream has got; what the host has waited for
  std::vector<std::string> races;
  bool is_capturing = false, is_never_ready = false;
  std::vector<std::vector<std::function<void()>>> graphs;  // what each is to do again; the last is being captured
  size_t limit = 0, used = 0, peak = 0;
  std::string error;  // of a kernel, unseen until the host waits for it
  int64_t failed_stream = -1, failed_time = 0;
  bool has_failed = false;  // and it has been seen: for good
  void (*on_sync)(const char*) = nullptr;

  void count(const std::string& kind) {
    for (auto& each : counts)
      if (each.first == kind) {
        ++each.second;
        return;
      }
    counts.emplace_back(kind, 1);
  }

  void fail() {
    has_failed = true;
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 8
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, ASSERTED, "NPU error: " + error);
#else
    TORCH_CHECK(false, "NPU error: ", error);
#endif
  }

  // A kernel is queued on the current stream, unless a device error has been seen.
  int64_t launch() {
    if (n_quiet) return 0;
    std::lock_guard<std::recursive_mutex> lock(mutex);
    if (has_failed) fail();
    count("kernel");
    auto& clock = streams[current_stream];
    join(clock, host);
    return ++at(clock, current_stream);
  }

  // What was done now is to be done again when the graph that is captured is replayed.
  void capture(std::function<void()> again) {
    if (is_capturing && !n_quiet && !graphs.empty()) graphs.back().push_back(std::move(again));
  }

  // It reads or writes bytes of a block.
  void touch(Block* block, size_t begin, size_t end, bool is_write, const std::string& name) {
    if (n_quiet || block == nullptr || begin == end) return;
    std::lock_guard<std::recursive_mutex> lock(mutex);
    auto& clock = streams[current_stream];
    std::vector<Access> kept;
    for (const auto& other : block->accesses) {
      const bool meets = other.begin < end && begin < other.end;
      if (meets && (is_write || other.is_write) && at(clock, other.stream) < other.time)
        races.push_back(name + " on stream " + std::to_string(current_stream) + (is_write ? " writes" : " reads") +
                        " what stream " + std::to_string(other.stream) + (other.is_write ? " writes" : " reads"));
      const bool is_covered = begin <= other.begin && other.end <= end;
      const bool is_known = at(clock, other.stream) >= other.time;
      if (!(is_covered && is_known && (is_write || !other.is_write))) kept.push_back(other);
    }
    kept.push_back({begin, end, current_stream, at(clock, current_stream), is_write});
    if (kept.size() > MANY) kept = together(kept);
    block->accesses = std::move(kept);
  }

  // The host waits until a stream has done what was queued by then.
  void wait(const char* kind, const Clock& until) {
    if (n_quiet) return;
    {
      std::lock_guard<std::recursive_mutex> lock(mutex);
      TORCH_CHECK(!is_capturing, "operation not permitted when stream is capturing (", kind, ")");
      count(kind);
    }
    if (on_sync != nullptr) on_sync(kind);
    std::lock_guard<std::recursive_mutex> lock(mutex);
    TORCH_CHECK(!is_never_ready, "the host would wait for ever (", kind, ")");
    join(done, until);
    join(host, until);
    if (failed_stream >= 0 && at(done, failed_stream) >= failed_time) fail();
    if (has_failed) fail();
  }

  bool is_ready(const Clock& until, int64_t stream) {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    TORCH_CHECK(!is_capturing, "operation not permitted when stream is capturing (query)");
    if (has_failed) fail();
    auto wanted = until;
    const auto n = at(wanted, stream);
    if (at(done, stream) < n && !is_never_ready) at(done, stream) = std::min(at(done, stream) + AT_ONCE, n);
    if (at(done, stream) < n) return false;
    join(done, until);
    if (failed_stream >= 0 && at(done, failed_stream) >= failed_time) fail();
    join(host, until);
    return true;
  }
};

inline Device& device() {
  static auto* only = new Device;  // never destroyed: tensors may be freed after it
  return *only;
}

inline void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  {
    std::lock_guard<std::recursive_mutex> lock(device().mutex);
    device().used -= block->n_bytes;
  }
  std::free(block->data);
  delete block;
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    auto& own = device();
    std::lock_guard<std::recursive_mutex> lock(own.mutex);
    TORCH_CHECK_WITH(OutOfMemoryError, !own.limit || own.used + n <= own.limit, "NPU out of memory. Tried to allocate ",
                     n, " bytes; ", own.used, " of ", own.limit, " are in use.");
    if (!n) return {nullptr, nullptr, &free_nothing, here()};
    own.used += n;
    own.peak = std::max(own.peak, own.used);
    auto* block = new Block{std::malloc(n), n, {}};
    return {block->data, block, &free_block, here()};
  }
  static void free_nothing(void*) {}
  void copy_data(void* to, const void* from, size_t n) const override { default_copy_data(to, from, n); }
};

}  // namespace npu
