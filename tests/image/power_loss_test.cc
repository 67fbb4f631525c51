// The machine loses power at every instant of writing, pruning, and compacting images: whatever the file
// system has not been told to make durable may be there, gone, or torn. The newest durable image comes back
// all the same.
//
// The run is traced (ptrace), and what it does to the directory is recorded: creations, writes, syncs,
// renames, removals. Then every prefix of that record is replayed into a directory, in several ways of losing
// what was not synced.
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>

#include <map>
#include <random>

#include "image/read/saved_memory.h"
#include "image/read/sources/image_catalog.h"
#include "image/rewrite/image_rewrite.h"
#include "image/write/backend/pwritev_backend.h"
#include "image/write/directory/image_directory.h"
#include "tests/image/faulty_backend.h"
#include "tests/image/image_fixture.h"

namespace ckpt {
namespace {

constexpr long kMarkCall =
    100000;  // a system call that does not exist: the image with that sequence is durable

struct Op {
  enum Kind { kCreate, kWrite, kTruncate, kExtend, kSync, kSyncDirectory, kRename, kUnlink, kMark } kind;
  int file = 0;  // number of the creation
  uint64_t offset = 0;
  std::string data;  // or name
  std::string to;
};

class Recorder {
 public:
  Recorder(pid_t child, int dir_fd) : child_(child), dir_fd_(dir_fd) {}

  // Until the child has ended; its exit code.
  int run() {
    int status;
    waitpid(child_, &status, 0);
    ptrace(PTRACE_SETOPTIONS, child_, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    for (bool entry = true;; entry = !entry) {
      int signal = 0;
      for (;;) {
        ptrace(PTRACE_SYSCALL, child_, 0, signal);
        waitpid(child_, &status, 0);
        if (WIFEXITED(status)) return WEXITSTATUS(status);
        if (WIFSIGNALED(status)) return 128 + WTERMSIG(status);
        if (WSTOPSIG(status) == (SIGTRAP | 0x80)) break;
        signal = WSTOPSIG(status);
      }
      user_regs_struct r;
      ptrace(PTRACE_GETREGS, child_, 0, &r);
      if (entry && r.orig_rax == __NR_io_uring_setup) {
        // Its writes could not be seen: like in a container that forbids it, there are others.
        r.orig_rax = ~0ull;
        ptrace(PTRACE_SETREGS, child_, 0, &r);
      }
      if (!entry && static_cast<long>(r.rax) >= 0) happened(r);
      if (!entry && static_cast<long>(r.orig_rax) == kMarkCall) ops.push_back({Op::kMark, 0, r.rdi, {}, {}});
    }
  }

  std::vector<Op> ops;

 private:
  std::string text(uint64_t at) {
    std::string s;
    for (char c; read(at + s.size(), &c, 1) && c != '\0';) s += c;
    return s;
  }
  bool read(uint64_t at, void* to, size_t n) {
    iovec local{to, n}, remote{reinterpret_cast<void*>(at), n};
    return process_vm_readv(child_, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(n);
  }
  void happened(const user_regs_struct& r) {
    const int fd = static_cast<int>(r.rdi);
    auto file = files_.find(fd);
    switch (r.orig_rax) {
      case __NR_openat:
        files_.erase(static_cast<int>(r.rax));
        if (fd == dir_fd_ && (r.rdx & O_CREAT) != 0) {
          files_[static_cast<int>(r.rax)] = ++created_;
          ops.push_back({Op::kCreate, created_, 0, text(r.rsi), {}});
        }
        break;
      case __NR_close:
        files_.erase(fd);
        break;
      case __NR_pwritev: {
        if (file == files_.end()) break;
        uint64_t offset = r.r10, left = r.rax;
        for (uint64_t i = 0; i < r.rdx && left > 0; ++i) {
          iovec v;
          ASSERT_TRUE(read(r.rsi + i * sizeof(v), &v, sizeof(v)));
          std::string data(std::min<uint64_t>(left, v.iov_len), '\0');
          ASSERT_TRUE(read(reinterpret_cast<uint64_t>(v.iov_base), data.data(), data.size()));
          left -= data.size();
          ops.push_back({Op::kWrite, file->second, offset, data, {}});
          offset += data.size();
        }
        break;
      }
      case __NR_write:
      case __NR_pwrite64:
      case __NR_writev:
      case __NR_copy_file_range:
        ASSERT_EQ(file, files_.end())
            << "system call " << r.orig_rax << " writes images, and is not replayed";
        break;
      case __NR_ftruncate:
        if (file != files_.end()) ops.push_back({Op::kTruncate, file->second, r.rsi, {}, {}});
        break;
      case __NR_fallocate:
        if (file != files_.end()) ops.push_back({Op::kExtend, file->second, r.rdx + r.r10, {}, {}});
        break;
      case __NR_fsync:
      case __NR_fdatasync:
        if (file != files_.end()) ops.push_back({Op::kSync, file->second, 0, {}, {}});
        if (fd == dir_fd_) ops.push_back({Op::kSyncDirectory, 0, 0, {}, {}});
        break;
      case __NR_renameat:
      case __NR_renameat2:
        if (fd == dir_fd_) ops.push_back({Op::kRename, 0, 0, text(r.rsi), text(r.r10)});
        break;
      case __NR_unlinkat:
        if (fd == dir_fd_) ops.push_back({Op::kUnlink, 0, 0, text(r.rsi), {}});
        break;
      default:
        break;
    }
  }

  pid_t child_;
  int dir_fd_;
  int created_ = 0;
  std::map<int, int> files_;  // descriptor: number of the creation
};

// What of that which was not synced is there after the crash.
enum class Lost { kNothing, kAll, kData, kNames, kSome, kSomeNames };

// The files after the first `count` operations and a crash.
class Disk {
 public:
  Disk(std::span<const Op> ops, Lost lost, unsigned seed) : random_(seed) {
    for (const Op& op : ops) apply(op);
    const bool names_survive = lost == Lost::kNothing || lost == Lost::kData;
    // A journal keeps the order of names.
    size_t names = names_survive         ? pending_names_.size()
                   : lost == Lost::kSome ? random_() % (pending_names_.size() + 1)
                                         : 0;
    for (size_t i = 0; i < names; ++i) rename(durable_names_, pending_names_[i]);
    // Not every file system has one.
    for (size_t i = 0; lost == Lost::kSomeNames && i < pending_names_.size(); ++i) {
      if (random_() % 2 == 0) rename(durable_names_, pending_names_[i]);
    }
    for (auto& [number, file] : files_) {
      for (const Op& op : file.pending) {
        if (lost == Lost::kNothing || lost == Lost::kNames) change(file.durable, op, op.data.size());
        // Any of them, in part, in sectors.
        if (lost == Lost::kSome && random_() % 2 == 0)
          change(file.durable, op, random_() % (op.data.size() / 512 + 1) * 512);
      }
    }
  }
  void write_to(const std::string& directory) {
    for (const auto& [name, number] : durable_names_) {
      std::ofstream(directory + "/" + name, std::ios::binary) << files_[number].durable.bytes;
      std::filesystem::resize_file(directory + "/" + name, files_[number].durable.length);
      std::filesystem::permissions(directory + "/" + name, std::filesystem::perms(0600));
    }
  }

 private:
  struct Content {
    std::string bytes;
    uint64_t length = 0;  // zeros behind the bytes: room that is reserved ahead
  };
  struct File {
    Content durable;
    std::vector<Op> pending;
  };
  static void change(Content& c, const Op& op, size_t n) {
    if (op.kind == Op::kTruncate) {
      c.bytes.resize(std::min<uint64_t>(c.bytes.size(), op.offset));
      c.length = op.offset;
    }
    if (op.kind == Op::kExtend) c.length = std::max(c.length, op.offset);
    if (op.kind != Op::kWrite || n == 0) return;
    if (c.bytes.size() < op.offset + n) c.bytes.resize(op.offset + n);
    c.bytes.replace(op.offset, n, op.data, 0, n);
    c.length = std::max<uint64_t>(c.length, c.bytes.size());
  }
  static void rename(std::map<std::string, int>& names, const Op& op) {
    if (op.kind == Op::kCreate) names[op.data] = op.file;
    if (op.kind == Op::kUnlink) names.erase(op.data);
    if (op.kind != Op::kRename || !names.contains(op.data)) return;
    names[op.to] = names[op.data];
    names.erase(op.data);
  }
  void apply(const Op& op) {
    switch (op.kind) {
      case Op::kWrite:
      case Op::kTruncate:
      case Op::kExtend:
        files_[op.file].pending.push_back(op);
        break;
      case Op::kSync:
        for (const Op& p : files_[op.file].pending) change(files_[op.file].durable, p, p.data.size());
        files_[op.file].pending.clear();
        break;
      case Op::kSyncDirectory:
        for (const Op& p : pending_names_) rename(durable_names_, p);
        pending_names_.clear();
        break;
      case Op::kMark:
        break;
      default:
        pending_names_.push_back(op);
    }
  }

  std::mt19937 random_;
  std::map<int, File> files_;
  std::map<std::string, int> durable_names_;
  std::vector<Op> pending_names_;
};

class PowerLoss : public ImageTest {
 protected:
  static constexpr uint64_t kSome = 0x5555'0f0f'00ff'ffffull;

  // In the traced process. Full, full, pruned, an increment, compacted, pruned; another program's, pruned.
  int life() {
    PwritevBackend backend;
    SinkOptions small;
    small.backend = &backend;
    small.chunk_bytes = 64 << 10;
    auto durable = [](long sequence) { sys::call(kMarkCall, sequence); };
    if (!write_image(1, first_, ~0ull, small).ok()) return 1;
    durable(1);
    if (!write_image(2, second_, ~0ull, small).ok()) return 2;
    durable(2);
    if (!prune_images(dir_fd_.get(), kRunId, 1).ok()) return 3;
    if (!write_image(3, first_, kSome, small, 2).ok()) return 4;
    durable(3);
    auto chain = ImageChain::open(path(name(3)));
    if (!chain.ok() || chain->size() != 2) return 5;
    SinkOptions in_place;
    in_place.replace = true;
    if (!rewrite_as_full(*chain, in_place, dir_fd_.get(), name(3).c_str(), {}).ok()) return 6;
    durable(3);
    auto pruned = prune_images(dir_fd_.get(), kRunId, 1);
    if (!pruned.ok() || pruned->images != 1) return 7;
    FaultyBackend slow(backend, {Fault::kLateDirSync});
    small.backend = &slow;
    if (!write_image(4, first_, ~0ull, small).ok()) return 8;
    pruned = prune_images(dir_fd_.get(), kRunId, 1);
    return pruned.ok() && pruned->images == 1 ? 0 : 9;
  }

  // What is wrong with the newest image there; nothing, if all is well.
  std::string wrong_in(const std::string& directory, uint64_t durable) {
    auto newest = resolve_image(directory);
    if (!newest.ok()) return durable == 0 ? "" : newest.error().text;
    auto image = ImageChain::open(*newest);
    if (!image.ok()) return image.error().text;
    if (image->brief().sequence < durable) return "an older image";
    auto verified = image->verify_all(1);
    if (!verified.ok()) return verified.error().text;
    const uint64_t sequence = image->brief().sequence;
    const TestMemory& memory = sequence == 2 ? second_ : first_;
    std::vector<std::byte> got(memory.size), expected(memory.bytes, memory.bytes + memory.size);
    for (size_t page = 0; sequence == 3 && page < memory.size / 4096; ++page) {
      if ((kSome >> (page % 64) & 1) == 0) std::memset(&expected[page * 4096], 0, 4096);
    }
    if (!SavedMemory(*image).read(Addr{memory.base}, got).ok() || got != expected) return "other memory";
    return "";
  }

  // All crashes that come back wrong.
  std::vector<std::string> crash_everywhere(const std::vector<Op>& ops) {
    std::vector<std::string> wrong;
    uint64_t durable = 0;
    const std::string crashed = directory_ + "/crashed";
    for (size_t count = 0; count <= ops.size(); ++count) {
      if (count > 0 && ops[count - 1].kind == Op::kMark) durable = ops[count - 1].offset;
      for (Lost lost :
           {Lost::kNothing, Lost::kAll, Lost::kData, Lost::kNames, Lost::kSome, Lost::kSomeNames}) {
        for (unsigned seed = 0; seed < (lost >= Lost::kSome ? 6u : 1u); ++seed) {
          std::filesystem::remove_all(crashed);
          std::filesystem::create_directory(crashed);
          std::filesystem::permissions(crashed, std::filesystem::perms(0700));
          Disk(std::span(ops).first(count), lost, seed + static_cast<unsigned>(count) * 100)
              .write_to(crashed);
          std::string what = wrong_in(crashed, durable);
          if (what.empty()) continue;
          wrong.push_back(fmt::format("after {} of {} operations, lost {} seed {}: {}", count, ops.size(),
                                      static_cast<int>(lost), seed, what));
        }
      }
    }
    return wrong;
  }

  TestMemory first_{40}, second_{40, 0x10000, 2};
};

TEST_F(PowerLoss, AtEveryInstant) {
  pid_t child = fork();
  if (child == 0) {
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    raise(SIGSTOP);
    _exit(life());
  }
  Recorder recorder(child, dir_fd_.get());
  ASSERT_EQ(recorder.run(), 0);
  size_t syncs = 0, writes = 0, removals = 0, renames = 0;
  for (const Op& op : recorder.ops) {
    syncs += op.kind == Op::kSync || op.kind == Op::kSyncDirectory;
    writes += op.kind == Op::kWrite;
    removals += op.kind == Op::kUnlink;
    renames += op.kind == Op::kRename;
  }
  // All that was done has been seen: five images, of which three went.
  ASSERT_EQ(renames, 5u);
  ASSERT_GE(syncs, 8u);
  ASSERT_GT(writes, 12u);
  ASSERT_EQ(removals, 3u);

  for (const std::string& wrong : crash_everywhere(recorder.ops)) ADD_FAILURE() << wrong;
  // The replay does lose things: had the files not been synced, or the directory, images would be gone.
  for (Op::Kind forgotten : {Op::kSync, Op::kSyncDirectory}) {
    std::vector<Op> careless = recorder.ops;
    std::erase_if(careless, [&](const Op& op) { return op.kind == forgotten; });
    EXPECT_FALSE(crash_everywhere(careless).empty()) << static_cast<int>(forgotten);
  }
}

}  // namespace
}  // namespace ckpt
