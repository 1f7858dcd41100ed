// A few threads that work through the phases of one program together.
//
//     phase   a number of units of work, any thread may do any of them in any order
//     program phases one after another; a phase begins when all units of the one before are done
//
// There is no barrier: a phase waits for its units, not for threads. A thread that the system has taken off its core
// holds up only what it has claimed, a late one finds the phase gone and goes on with the next. Units are claimed in
// shrinking handfuls. Who has nothing to do spins for a moment, then yields, then sleeps.
//
// The state is one word, so that a claim and a change of phase cannot be mixed up:
//
//     [ number of the phase, 32 bits | units nobody has claimed, 32 bits ]      phases are numbered on and on
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace headrace {

class Program {
 public:
  virtual ~Program() = default;
  virtual int num_phases() const = 0;
  // Asked when the phase before is done. 0 skips the phase.
  virtual uint32_t num_units(int phase) const = 0;
  // Units [begin, end). `thread` is below the team's number, and no two run under one number at a time.
  virtual void run(int phase, uint32_t begin, uint32_t end, int thread) = 0;
};

class Team {
 public:
  // `num_threads` counts the one that calls `run`.
  explicit Team(int num_threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int num_threads() const { return num_threads_; }

  // Returns when the last phase is done. Not for two threads at a time.
  void run(Program& program);

 private:
  void help(int thread);
  bool try_work(int thread);
  void advance();
  void wait(uint64_t seen, int spin_us);
  bool is_worth_waking(uint64_t seen) const;

  const int num_threads_;
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<uint32_t> pending_{0};  // units of the phase not done yet
  // Of the running phase. Written before the state that announces it, read by who has claimed units of it.
  Program* program_ = nullptr;
  int phase_ = 0;
  uint32_t num_units_ = 0;

  alignas(64) std::atomic<bool> is_done_{true}, is_ending_{false};
  std::atomic<int> num_asleep_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::thread> helpers_;
};

}  // namespace headrace
