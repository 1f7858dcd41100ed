#include "team.h"

#include <algorithm>
#include <chrono>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace headrace {
namespace {

constexpr int kSpinInsideUs = 40;    // the others finish what they claimed: microseconds, unless the system took them
constexpr int kSpinBetweenUs = 150;  // the next step comes soon while the engine is busy
constexpr int kYields = 20;
constexpr uint64_t kUnclaimed = 0xFFFFFFFF;

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Team::Team(int num_threads) : num_threads_(num_threads) {
  for (int thread = 1; thread < num_threads; ++thread) helpers_.emplace_back([this, thread] { help(thread); });
}

Team::~Team() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void Team::run(Program& program) {
  program_ = &program;
  phase_ = -1;
  is_done_ = false;
  advance();
  while (!is_done_) {
    const uint64_t seen = state_;
    if (!try_work(0) && !is_done_) wait(seen, kSpinInsideUs);
  }
}

void Team::help(int thread) {
  while (!is_ending_) {
    const uint64_t seen = state_;
    if (!try_work(thread)) wait(seen, is_done_ ? kSpinBetweenUs : kSpinInsideUs);
  }
}

// False when no unit is left to claim now.
bool Team::try_work(int thread) {
  uint64_t state = state_.load(std::memory_order_acquire);
  uint32_t left, claimed;
  do {
    left = static_cast<uint32_t>(state & kUnclaimed);
    if (!left) return false;
    claimed = num_threads_ == 1 ? left : std::max(left / (2 * num_threads_), 1u);
  } while (!state_.compare_exchange_weak(state, state - claimed, std::memory_order_acq_rel));
  const uint32_t begin = num_units_ - left;
  program_->run(phase_, begin, begin + claimed, thread);
  if (pending_.fetch_sub(claimed, std::memory_order_acq_rel) == claimed) advance();
  return true;
}

// Open the next phase that has units. Only who did the last unit of a phase is here, so alone.
void Team::advance() {
  num_units_ = 0;
  while (!num_units_ && ++phase_ < program_->num_phases()) num_units_ = program_->num_units(phase_);
  const bool is_end = !num_units_;
  pending_.store(num_units_, std::memory_order_relaxed);
  const uint64_t number = (state_.load(std::memory_order_relaxed) >> 32) + 1;
  if (is_end) is_done_ = true;
  state_.store(number << 32 | num_units_);
  if (num_asleep_.load()) {
    const std::lock_guard<std::mutex> lock(mutex_);
    changed_.notify_all();
  }
}

bool Team::is_worth_waking(uint64_t seen) const {
  const uint64_t state = state_.load();
  return (state & kUnclaimed) || state >> 32 != seen >> 32 || is_ending_;
}

// Until there are units, the phase is another than in `seen`, or the team ends. May return early.
void Team::wait(uint64_t seen, int spin_us) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us);
  do {
    for (int i = 0; i < 32; ++i) {
      if (is_worth_waking(seen)) return;
      relax();
    }
  } while (std::chrono::steady_clock::now() < until);
  for (int i = 0; i < kYields; ++i) {
    if (is_worth_waking(seen)) return;
    std::this_thread::yield();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  ++num_asleep_;
  changed_.wait(lock, [&] { return is_worth_waking(seen); });
  --num_asleep_;
}

}  // namespace headrace
