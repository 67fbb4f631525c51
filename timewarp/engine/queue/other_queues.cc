// The queues to compare the ladder queue with: a heap with four children a node, a calendar queue (Brown
// 1988), a splay tree (Sleator and Tarjan 1986).
#include <cmath>
#include <vector>

#include "timewarp/engine/queue/event_queue.h"

namespace ckpt::timewarp {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class HeapQueue final : public OtherQueue {
 public:
  void push(Entry entry) override {
    size_t at = heap_.size();
    heap_.push_back(entry);
    while (at > 0) {
      const size_t parent = (at - 1) / 4;
      if (!(entry < heap_[parent])) break;
      heap_[at] = heap_[parent];
      at = parent;
    }
    heap_[at] = entry;
  }
  Entry min() override { return heap_.empty() ? Entry{kInfinity, nullptr} : heap_[0]; }
  void pop() override {
    const Entry last = heap_.back();
    heap_.pop_back();
    const size_t n = heap_.size();
    if (n == 0) return;
    size_t at = 0;
    for (;;) {
      const size_t first = at * 4 + 1;
      if (first >= n) break;
      size_t best = first;
      for (size_t child = first + 1; child < std::min(first + 4, n); ++child) {
        if (heap_[child] < heap_[best]) best = child;
      }
      if (!(heap_[best] < last)) break;
      heap_[at] = heap_[best];
      at = best;
    }
    heap_[at] = last;
  }
  size_t size() const override { return heap_.size(); }

 private:
  std::vector<Entry> heap_;
};

// A year of days; a day is a sorted vector, largest first. The number of days follows the number of events,
// the length of a day the distance between events.
class CalendarQueue final : public OtherQueue {
 public:
  CalendarQueue() : days_(2) {}
  void push(Entry entry) override {
    insert(entry);
    if (++size_ > days_.size() * 2) resize(days_.size() * 2);
  }
  Entry min() override {
    if (size_ == 0) return {kInfinity, nullptr};
    find();
    return days_[day_].back();
  }
  void pop() override {
    find();
    days_[day_].pop_back();
    if (--size_ < days_.size() / 4 && days_.size() > 2) resize(days_.size() / 2);
  }
  size_t size() const override { return size_; }

 private:
  // Which day since the beginning of time; as a double, so that no time is too large.
  double number_of(double time) const { return std::floor(time / length_); }
  size_t day_of(double number) const {
    return static_cast<size_t>(std::fmod(number, static_cast<double>(days_.size())));
  }

  void insert(Entry entry) {
    const double number = number_of(entry.time);
    std::vector<Entry>& day = days_[day_of(number)];
    day.insert(std::upper_bound(day.begin(), day.end(), entry, EntryAfter{}), entry);
    if (number < number_) {
      number_ = number;
      day_ = day_of(number);
    }
  }
  // Brings day_ to the first event.
  void find() {
    for (size_t passed = 0; passed < days_.size(); ++passed) {
      if (!days_[day_].empty() && number_of(days_[day_].back().time) <= number_) return;
      number_ += 1;
      day_ = day_ + 1 == days_.size() ? 0 : day_ + 1;
    }
    // A year without an event: look for the first directly.
    const std::vector<Entry>* best = nullptr;
    for (const auto& day : days_) {
      if (!day.empty() && (best == nullptr || day.back() < best->back())) best = &day;
    }
    number_ = number_of(best->back().time);
    day_ = day_of(number_);
  }
  void resize(size_t days) {
    std::vector<Entry> all;
    all.reserve(size_);
    for (auto& day : days_) all.insert(all.end(), day.begin(), day.end());
    days_.assign(days, {});
    double low = kInfinity, sum = 0;
    for (const Entry& e : all) low = std::min(low, e.time);
    for (const Entry& e : all) sum += e.time - low;
    const double mean = all.empty() ? 0 : sum / static_cast<double>(all.size());
    if (mean > 0) length_ = std::max(3 * mean / static_cast<double>(all.size()), low * 1e-15);
    number_ = kInfinity;
    for (const Entry& e : all) insert(e);
    if (all.empty()) {
      number_ = 0;
      day_ = 0;
    }
  }

  std::vector<std::vector<Entry>> days_;
  size_t size_ = 0, day_ = 0;
  double length_ = 1, number_ = 0;
};

class SplayQueue final : public OtherQueue {
 public:
  void push(Entry entry) override {
    ++size_;
    Node* node = take();
    node->entry = entry;
    node->left = node->right = nullptr;
    if (root_ != nullptr) {
      root_ = splay(root_, entry);
      if (entry < root_->entry) {
        node->left = root_->left;
        node->right = root_;
        root_->left = nullptr;
      } else {
        node->right = root_->right;
        node->left = root_;
        root_->right = nullptr;
      }
    }
    root_ = node;
  }
  Entry min() override {
    if (root_ == nullptr) return {kInfinity, nullptr};
    // Smaller than all: the first comes to the root, and has no left child then.
    root_ = splay(root_, {-kInfinity, nullptr});
    return root_->entry;
  }
  void pop() override {
    (void)min();
    Node* first = root_;
    root_ = root_->right;
    free_.push_back(first);
    --size_;
  }
  size_t size() const override { return size_; }

 private:
  struct Node {
    Entry entry;
    Node *left, *right;
  };

  // Top-down.
  static Node* splay(Node* t, Entry key) {
    Node header{};
    Node *l = &header, *r = &header;
    for (;;) {
      if (key < t->entry) {
        if (t->left == nullptr) break;
        if (key < t->left->entry) {
          Node* y = t->left;
          t->left = y->right;
          y->right = t;
          t = y;
          if (t->left == nullptr) break;
        }
        r->left = t;
        r = t;
        t = t->left;
      } else {
        if (t->right == nullptr) break;
        if (!(key < t->right->entry)) {
          Node* y = t->right;
          t->right = y->left;
          y->left = t;
          t = y;
          if (t->right == nullptr) break;
        }
        l->right = t;
        l = t;
        t = t->right;
      }
    }
    l->right = t->left;
    r->left = t->right;
    t->left = header.right;
    t->right = header.left;
    return t;
  }
  Node* take() {
    if (free_.empty()) {
      slabs_.push_back(std::make_unique<Node[]>(256));
      for (size_t i = 0; i < 256; ++i) free_.push_back(&slabs_.back()[i]);
    }
    Node* node = free_.back();
    free_.pop_back();
    return node;
  }

  Node* root_ = nullptr;
  size_t size_ = 0;
  std::vector<Node*> free_;
  std::vector<std::unique_ptr<Node[]>> slabs_;
};

}  // namespace

std::unique_ptr<OtherQueue> make_heap_queue() { return std::make_unique<HeapQueue>(); }
std::unique_ptr<OtherQueue> make_calendar_queue() { return std::make_unique<CalendarQueue>(); }
std::unique_ptr<OtherQueue> make_splay_queue() { return std::make_unique<SplayQueue>(); }

}  // namespace ckpt::timewarp
