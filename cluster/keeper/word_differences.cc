#include "cluster/keeper/word_differences.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/raii_fd.h"
#include "cluster/keeper/running_sum.h"

namespace ckpt::keeper {

namespace {

constexpr char kMagic[8] = {'c', 'k', 'p', 't', 'w', 'o', 'r', '1'};
constexpr uint32_t kNoSource = UINT32_MAX;
constexpr uint64_t kMostBlocks = 64;  // of a run: its changed ones are the bits of a word
constexpr unsigned kWords = kWordsBlock / sizeof(uint64_t), kGroup = 8;
constexpr uint64_t kStep = 1 << 20;  // bytes that are written or read at once
constexpr uint64_t kMostNames = 1 << 20;
constexpr uint64_t kLooks = 32;  // blocks that are looked at before all are
static_assert(kWords / kGroup == 64);

struct Head {
  char magic[8];
  uint64_t bytes;
  uint32_t sources;
  uint32_t names_bytes;  // each name with its final zero
};

struct RunHead {
  uint32_t blocks;
  uint32_t source;
  uint64_t block;    // of the source, the first
  uint64_t changed;  // which of them differ
};

Error cannot_read(int error) {
  return make_error(ExitCode::kIo, error, "a part's image cannot be read ({})",
                    error == 0 ? "it is shorter" : errno_name(error));
}

Error damaged() {
  return make_error(ExitCode::kImageDamaged, 0, "the differences of an image are damaged, or of another one");
}

Result<void> read_at(int fd, std::span<std::byte> to, uint64_t at) {
  for (size_t done = 0; done < to.size();) {
    const ssize_t n = pread(fd, to.data() + done, to.size() - done, static_cast<off_t>(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return cannot_read(n < 0 ? errno : 0);
    done += static_cast<size_t>(n);
  }
  return {};
}

Result<void> write_at(int fd, std::span<const std::byte> from, uint64_t at) {
  for (size_t done = 0; done < from.size();) {
    const ssize_t n = pwrite(fd, from.data() + done, from.size() - done, static_cast<off_t>(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int error = n < 0 ? errno : ENOSPC;
      return make_error(ExitCode::kIo, error,
                        "an image cannot be written ({}): start the keeper with more --memory",
                        errno_name(error));
    }
    done += static_cast<size_t>(n);
  }
  return {};
}

void append(std::vector<std::byte>& to, const void* from, size_t bytes) {
  const auto* first = static_cast<const std::byte*>(from);
  to.insert(to.end(), first, first + bytes);
}

// The block as it is now, from what it was. take(to, bytes): the next ones of the differences.
template <typename Take>
bool take_words(std::span<std::byte> block, Take take) {
  uint64_t groups = 0;
  uint8_t bits[kWords / kGroup];
  const auto many = [](uint64_t mask) { return static_cast<size_t>(__builtin_popcountll(mask)); };
  if (!take(&groups, sizeof(groups)) || !take(bits, many(groups))) return false;
  for (unsigned g = 0, next = 0; g < kWords / kGroup; ++g) {
    if ((groups >> g & 1) == 0) continue;
    const uint8_t which = bits[next++];
    for (unsigned w = 0; w < kGroup; ++w) {
      if ((which >> w & 1) != 0 &&
          !take(block.data() + (g * kGroup + w) * sizeof(uint64_t), sizeof(uint64_t)))
        return false;
    }
  }
  return true;
}

class Writer {
 public:
  Writer(int file, std::span<const int> sources, uint64_t most, int to, uint64_t to_at, WordsStats& stats)
      : file_(file), sources_(sources), most_(most), out_(to), out_at_(to_at), stats_(stats) {}

  uint64_t length() const { return written_ + to_.size(); }
  bool too_long() const { return too_long_ || length() > most_; }
  uint64_t sum() const { return sum_.value(); }
  void add(const void* from, size_t bytes) { append(to_, from, bytes); }

  Result<void> flush() {
    CKPT_TRY(write_at(out_, to_, out_at_ + written_));
    written_ += to_.size();
    to_.clear();
    return {};
  }

  Result<void> whole(uint64_t at, uint64_t bytes) {
    too_long_ = length() + bytes > most_;
    while (bytes > 0 && !too_long()) {
      const uint64_t now = std::min(bytes, kStep);
      const RunHead run{static_cast<uint32_t>(now / kWordsBlock), kNoSource, 0, 0};
      add(&run, sizeof(run));
      const size_t place = to_.size();
      to_.resize(place + now);
      CKPT_TRY(read_at(file_, std::span(to_).subspan(place), at));
      sum_.add(std::span(to_).subspan(place));
      CKPT_TRY(flush());
      at += now;
      bytes -= now;
    }
    return {};
  }

  Result<void> differences(const OldPlace& old) {
    for (uint64_t done = 0; done < old.bytes && !too_long();) {
      const uint64_t bytes = std::min(old.bytes - done, kMostBlocks * kWordsBlock);
      const auto now = std::span(now_).first(bytes), then = std::span(then_).first(bytes);
      CKPT_TRY(read_at(file_, now, old.at + done));
      sum_.add(now);
      CKPT_TRY(read_at(sources_[old.source], then, old.at_source + done));
      RunHead run{static_cast<uint32_t>(bytes / kWordsBlock), old.source,
                  (old.at_source + done) / kWordsBlock, 0};
      const size_t place = to_.size();
      add(&run, sizeof(run));
      for (uint32_t i = 0; i < run.blocks; ++i) {
        const auto one = now.subspan(i * kWordsBlock, kWordsBlock);
        const auto other = then.subspan(i * kWordsBlock, kWordsBlock);
        if (memcmp(one.data(), other.data(), kWordsBlock) == 0) continue;
        run.changed |= uint64_t{1} << i;
        ++stats_.changed;
        stats_.words += append_words(one, other, to_);
      }
      memcpy(to_.data() + place, &run, sizeof(run));
      if (!give_again(std::span(to_).subspan(place), now, then))
        return make_error(ExitCode::kInternal, 0, "differences do not give an image again");
      if (to_.size() >= kStep) CKPT_TRY(flush());
      stats_.blocks += run.blocks;
      done += bytes;
    }
    return {};
  }

  // Do the blocks without an older one, or some that are spread over those that have one, say that it would
  // be too long?
  Result<bool> looks_too_long(std::span<const OldPlace> old, uint64_t bytes) {
    uint64_t blocks = 0;
    for (const OldPlace& o : old) blocks += o.bytes / kWordsBlock;
    const uint64_t without = bytes - blocks * kWordsBlock;
    if (without > most_) return true;
    if (blocks <= 4 * kLooks) return false;
    std::vector<std::byte> looked;
    uint64_t before = 0, look = 0;
    for (const OldPlace& o : old) {
      const uint64_t here = o.bytes / kWordsBlock;
      for (; look < kLooks && look * blocks / kLooks < before + here; ++look) {
        // Not always the first of as many: what is written may lie in steps.
        const uint64_t wanted = look * blocks / kLooks + look % 16;
        if (wanted < before || wanted >= before + here) continue;
        const uint64_t at = (wanted - before) * kWordsBlock;
        const auto now = std::span(now_).first(kWordsBlock), then = std::span(then_).first(kWordsBlock);
        CKPT_TRY(read_at(file_, now, o.at + at));
        CKPT_TRY(read_at(sources_[o.source], then, o.at_source + at));
        append_words(now, then, looked);
      }
      before += here;
    }
    return looked.size() * blocks / kLooks + without > most_;
  }

 private:
  // The reader of the differences has no other copy of these blocks. `then` becomes the block as the reader
  // will have it.
  static bool give_again(std::span<const std::byte> words, std::span<const std::byte> now,
                         std::span<std::byte> then) {
    const auto take = [&words](void* to, size_t bytes) {
      if (bytes > words.size()) return false;
      memcpy(to, words.data(), bytes);
      words = words.subspan(bytes);
      return true;
    };
    RunHead run;
    if (!take(&run, sizeof(run)) || run.blocks != now.size() / kWordsBlock) return false;
    for (uint32_t i = 0; i < run.blocks; ++i) {
      if ((run.changed >> i & 1) != 0 && !take_words(then.subspan(i * kWordsBlock, kWordsBlock), take))
        return false;
    }
    return words.empty() && memcmp(then.data(), now.data(), now.size()) == 0;
  }

  const int file_;
  const std::span<const int> sources_;
  const uint64_t most_;
  const int out_;
  const uint64_t out_at_;
  WordsStats& stats_;
  uint64_t written_ = 0;
  bool too_long_ = false;
  RunningSum sum_;
  std::vector<std::byte> to_;  // not written yet
  std::vector<std::byte> now_ = std::vector<std::byte>(kMostBlocks * kWordsBlock);
  std::vector<std::byte> then_ = std::vector<std::byte>(kMostBlocks * kWordsBlock);
};

}  // namespace

unsigned append_words(std::span<const std::byte> now, std::span<const std::byte> then,
                      std::vector<std::byte>& to) {
  uint64_t groups = 0, words[kWords];
  uint8_t bits[kWords / kGroup];
  unsigned many = 0, bitmaps = 0;
  for (unsigned g = 0; g < kWords / kGroup; ++g) {
    uint64_t one[kGroup], other[kGroup], any = 0;
    memcpy(one, now.data() + g * sizeof(one), sizeof(one));
    memcpy(other, then.data() + g * sizeof(other), sizeof(other));
    for (unsigned w = 0; w < kGroup; ++w) any |= one[w] ^ other[w];
    if (any == 0) continue;
    uint8_t which = 0;
    for (unsigned w = 0; w < kGroup; ++w) {
      if (one[w] == other[w]) continue;
      which = static_cast<uint8_t>(which | 1u << w);
      words[many++] = one[w];
    }
    groups |= uint64_t{1} << g;
    bits[bitmaps++] = which;
  }
  append(to, &groups, sizeof(groups));
  append(to, bits, bitmaps);
  append(to, words, many * sizeof(uint64_t));
  return many;
}

Result<uint64_t> write_words(int file, uint64_t bytes, std::span<const int> sources,
                             std::span<const std::string> names, std::span<const OldPlace> old, uint64_t most,
                             int to, uint64_t to_at, WordsStats* stats) {
  if (bytes % kWordsBlock != 0) return uint64_t{0};
  WordsStats own;
  if (stats == nullptr) stats = &own;
  Writer writer(file, sources, most, to, to_at, *stats);
  auto too_long = writer.looks_too_long(old, bytes);
  if (!too_long.ok()) return too_long.error();
  Head head{{}, bytes, static_cast<uint32_t>(names.size()), 0};
  memcpy(head.magic, kMagic, sizeof(kMagic));
  for (const std::string& name : names) head.names_bytes += static_cast<uint32_t>(name.size() + 1);
  if (*too_long || head.names_bytes > kMostNames) return uint64_t{0};
  writer.add(&head, sizeof(head));
  for (const std::string& name : names) writer.add(name.c_str(), name.size() + 1);
  uint64_t at = 0;
  for (const OldPlace& o : old) {
    if (o.at > at) CKPT_TRY(writer.whole(at, o.at - at));
    if (!writer.too_long()) CKPT_TRY(writer.differences(o));
    if (writer.too_long()) return uint64_t{0};
    at = o.at + o.bytes;
  }
  if (at < bytes) CKPT_TRY(writer.whole(at, bytes - at));
  if (writer.too_long()) return uint64_t{0};
  CKPT_TRY(writer.flush());
  stats->sum = writer.sum();
  return writer.length();
}

namespace {

class Reader {
 public:
  Reader(uint64_t bytes, const ReadWords& read) : bytes_(bytes), read_(read) {}
  bool take(void* to, size_t bytes) {
    auto* out = static_cast<std::byte*>(to);
    while (bytes > 0) {
      if (next_ == buffer_.size() && !fill()) return false;
      const size_t now = std::min(bytes, buffer_.size() - next_);
      memcpy(out, buffer_.data() + next_, now);
      next_ += now;
      out += now;
      bytes -= now;
    }
    return true;
  }
  bool empty() const { return next_ == buffer_.size() && at_ == bytes_; }
  // Why the last take() failed: the bytes could not be read, or there are no more.
  Error error() const { return error_ ? *error_ : damaged(); }

 private:
  bool fill() {
    buffer_.resize(std::min(kStep, bytes_ - at_));
    next_ = 0;
    if (buffer_.empty()) return false;
    if (auto r = read_(at_, buffer_); !r.ok()) {
      error_ = r.error();
      buffer_.clear();
      return false;
    }
    at_ += buffer_.size();
    return true;
  }

  const uint64_t bytes_;
  const ReadWords& read_;
  uint64_t at_ = 0;  // what is behind the buffer
  std::vector<std::byte> buffer_;
  size_t next_ = 0;
  std::optional<Error> error_;
};

}  // namespace

Result<void> write_from_words(uint64_t words, const ReadWords& read, int file, uint64_t bytes,
                              const OpenSource& source) {
  Reader reader(words, read);
  Head head;
  if (!reader.take(&head, sizeof(head))) return reader.error();
  if (memcmp(head.magic, kMagic, sizeof(kMagic)) != 0 || head.bytes != bytes || bytes % kWordsBlock != 0 ||
      head.names_bytes > kMostNames)
    return damaged();
  std::string names(head.names_bytes, '\0');
  if (!reader.take(names.data(), names.size())) return reader.error();
  if (!names.empty() && names.back() != '\0') return damaged();
  std::vector<ScopedFd> sources;
  for (size_t at = 0; at < names.size();) {
    const std::string name = names.c_str() + at;
    sources.emplace_back(source(name));
    if (!sources.back().valid())
      return make_error(ExitCode::kNotFound, errno, "{}: missing, and an image is made from it",
                        name.substr(0, 100));
    at += name.size() + 1;
  }
  if (sources.size() != head.sources) return damaged();
  const auto take = [&reader](void* to_where, size_t many) { return reader.take(to_where, many); };
  std::vector<std::byte> blocks(std::max(kStep, kMostBlocks * kWordsBlock));
  for (uint64_t at = 0; at < bytes;) {
    RunHead run;
    if (!reader.take(&run, sizeof(run))) return reader.error();
    const bool whole = run.source == kNoSource;
    const uint64_t most = whole ? kStep / kWordsBlock : kMostBlocks;
    if (run.blocks == 0 || run.blocks > most || run.blocks > (bytes - at) / kWordsBlock ||
        (!whole && (run.source >= sources.size() || run.block > UINT64_MAX / 2 / kWordsBlock)))
      return damaged();
    const auto now = std::span(blocks).first(run.blocks * kWordsBlock);
    if (whole) {
      if (!reader.take(now.data(), now.size())) return reader.error();
    } else {
      CKPT_TRY(read_at(sources[run.source].get(), now, run.block * kWordsBlock));
      for (uint32_t i = 0; i < run.blocks; ++i) {
        if ((run.changed >> i & 1) != 0 && !take_words(now.subspan(i * kWordsBlock, kWordsBlock), take))
          return reader.error();
      }
    }
    CKPT_TRY(write_at(file, now, at));
    at += now.size();
  }
  return reader.empty() ? Result<void>() : Result<void>(damaged());
}

}  // namespace ckpt::keeper
