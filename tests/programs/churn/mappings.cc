#include <sys/mman.h>

#include <algorithm>

#include "tests/programs/churn/churn.h"

namespace churn {

using namespace victim;

namespace {

constexpr unsigned kAreas = 48;
constexpr uint64_t kMostPages = 96;
constexpr uint64_t kHugePages = 1024;  // one area in thirty-two

// A run of pages and what each of them must hold: 0, or a word that is repeated through the page.
struct Area {
  std::byte* start = nullptr;
  std::vector<uint64_t> pages;
  // Mapped over: the area may be several mappings to the kernel, which mremap refuses.
  bool patched = false;
};

class Areas {
 public:
  explicit Areas(uint64_t seed) : random_(seed) {}

  void step(uint64_t n) {
    Area& area = areas_[random_.below(kAreas)];
    if (area.start == nullptr) {
      map(area, n);
      return;
    }
    check(area);
    switch (random_.below(area.patched ? 6 : 8)) {
      case 0:
        unmap(area, 0, area.pages.size());
        break;
      case 1:
        cut(area);
        break;
      case 2:
        write(area, n);
        break;
      case 3:
        discard(area, n);
        break;
      case 4:
        protect(area);
        break;
      case 5:
        map_over(area, n);
        break;
      case 6:
        move(area);
        break;
      default:
        resize(area, n);
        break;
    }
  }
  void finish() {
    for (Area& area : areas_) {
      check(area);
      if (area.start != nullptr) unmap(area, 0, area.pages.size());
    }
  }
  uint64_t checked() const { return checked_; }

 private:
  static std::byte* page(const Area& area, uint64_t i) { return area.start + i * kPage; }

  void put(Area& area, uint64_t i, uint64_t value) {
    area.pages[i] = value;
    // The first, the last and one other word: enough to see a page of another time, cheap enough
    // to be done at full speed.
    word_at(page(area, i)).store(value, std::memory_order_relaxed);
    word_at(page(area, i) + kPage - 8).store(value, std::memory_order_relaxed);
    word_at(page(area, i) + value % 510 * 8 + 8).store(value, std::memory_order_relaxed);
  }
  void check(const Area& area) {
    for (uint64_t i = 0; i < area.pages.size(); ++i) {
      uint64_t value = area.pages[i];
      uint64_t first = word_at(page(area, i)).load(std::memory_order_relaxed);
      uint64_t last = word_at(page(area, i) + kPage - 8).load(std::memory_order_relaxed);
      uint64_t other = word_at(page(area, i) + value % 510 * 8 + 8).load(std::memory_order_relaxed);
      require(first == value && last == value && other == value,
              "mappings: page {} of {} holds {:x} {:x} {:x}, not {:x}", i, area.pages.size(), first, other,
              last, value);
    }
    checked_ += area.pages.size();
  }

  void map(Area& area, uint64_t n) {
    uint64_t pages = random_.below(32) == 0 ? kHugePages : 1 + random_.below(kMostPages);
    area.start = map_pages(pages);
    area.pages.assign(pages, 0);
    if (pages == kHugePages) madvise(area.start, pages * kPage, MADV_HUGEPAGE);
    write(area, n);
  }
  void write(Area& area, uint64_t n) {
    for (uint64_t i = random_.below(4); i < area.pages.size(); i += 1 + random_.below(4)) {
      put(area, i, mix(n * 4096 + i));
    }
  }
  void unmap(Area& area, uint64_t first, uint64_t count) {
    require_call(munmap(page(area, first), count * kPage) == 0, "munmap");
    if (count == area.pages.size()) area = Area{};
  }
  // Takes away the beginning or the end.
  void cut(Area& area) {
    uint64_t remaining = area.pages.size() / 2;
    uint64_t removed = area.pages.size() - remaining;
    if (remaining == 0) {
      unmap(area, 0, removed);
    } else if (random_.below(2) == 0) {
      unmap(area, remaining, removed);
      area.pages.resize(remaining);
    } else {
      unmap(area, 0, removed);
      area.start += removed * kPage;
      area.pages.erase(area.pages.begin(), area.pages.begin() + static_cast<ptrdiff_t>(removed));
    }
  }
  void resize(Area& area, uint64_t n) {
    uint64_t pages = 1 + random_.below(kMostPages * 2);
    void* p = mremap(area.start, area.pages.size() * kPage, pages * kPage, MREMAP_MAYMOVE);
    require_call(p != MAP_FAILED, "mremap");
    area.start = static_cast<std::byte*>(p);
    area.pages.resize(pages, 0);
    check(area);
    put(area, pages - 1, mix(n));
  }
  // To an address of our choice.
  void move(Area& area) {
    std::byte* target = map_pages(area.pages.size());
    void* p = mremap(area.start, area.pages.size() * kPage, area.pages.size() * kPage,
                     MREMAP_MAYMOVE | MREMAP_FIXED, target);
    require_call(p == target, "mremap to a fixed address");
    area.start = target;
    check(area);
  }
  void discard(Area& area, uint64_t n) {
    uint64_t first = random_.below(area.pages.size());
    uint64_t count = 1 + random_.below(area.pages.size() - first);
    bool lazily = random_.below(3) == 0;
    require_call(madvise(page(area, first), count * kPage, lazily ? MADV_FREE : MADV_DONTNEED) == 0,
                 "madvise");
    for (uint64_t i = first; i < first + count; ++i) {
      area.pages[i] = 0;
      if (!lazily) continue;
      // Old contents or zeros; each page is one of the two until it is written again.
      std::fill_n(page(area, i), kPage, std::byte{0});
      put(area, i, mix(n + i));
    }
  }
  void protect(Area& area) {
    require_call(mprotect(area.start, area.pages.size() * kPage, PROT_READ) == 0, "mprotect");
    check(area);
    require_call(mprotect(area.start, area.pages.size() * kPage, PROT_READ | PROT_WRITE) == 0, "mprotect");
  }
  void map_over(Area& area, uint64_t n) {
    uint64_t first = random_.below(area.pages.size());
    uint64_t count = 1 + random_.below(area.pages.size() - first);
    void* p = mmap(page(area, first), count * kPage, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    require_call(p == page(area, first), "mmap over a mapping");
    area.patched = true;
    std::fill_n(area.pages.begin() + static_cast<ptrdiff_t>(first), count, 0);
    put(area, first, mix(n));
  }

  Random random_;
  Area areas_[kAreas];
  uint64_t checked_ = 0;
};

}  // namespace

std::string mappings(uint64_t iterations) {
  constexpr unsigned kThreads = 2;
  uint64_t checked[kThreads] = {};
  run_threads(kThreads, [&](unsigned t) {
    Areas areas(t + 300);
    for (uint64_t n = 1; n <= iterations; ++n) areas.step(n);
    areas.finish();
    checked[t] = areas.checked();
  });
  return fmt::format("{} operations, {} pages checked", kThreads * iterations, checked[0] + checked[1]);
}

}  // namespace churn
