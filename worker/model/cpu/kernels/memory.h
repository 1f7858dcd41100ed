// Buffers: zeroed, aligned to cache lines, and on huge pages where the system grants them (weights are streamed, so
// page-table walks would cost a tenth of the bandwidth). Pages come when first written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace headrace {

constexpr size_t kCacheLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;

inline size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Raises std::bad_alloc. Not copied, only moved.
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t size) : size_(round_up(size, size < kHugePage ? kCacheLine : kHugePage)) {
    if (!size_) return;
    start_ = std::aligned_alloc(size_ < kHugePage ? kCacheLine : kHugePage, size_);
    if (!start_) throw std::bad_alloc();
    if (size_ < kHugePage) {
      std::memset(start_, 0, size_);
    } else {
      zero_large();
    }
  }
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept {
    std::swap(start_, other.start_);
    std::swap(size_, other.size_);
    return *this;
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { std::free(start_); }

  template <class T>
  T* as() const { return static_cast<T*>(start_); }
  size_t size() const { return size_; }

  // At least `size` bytes; what was in it is lost when it grows.
  void reserve(size_t size) {
    if (size > size_) *this = Memory(size + size / 4);
  }

 private:
  void zero_large() {
#if defined(__linux__)
    madvise(start_, size_, MADV_HUGEPAGE);
    if (madvise(start_, size_, MADV_DONTNEED) == 0) return;  // fresh anonymous pages read as zeros
#endif
    std::memset(start_, 0, size_);
  }

  void* start_ = nullptr;
  size_t size_ = 0;
};

}  // namespace headrace
