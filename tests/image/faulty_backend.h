// A back end that writes like another one, except where it is told to fail.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "image/write/backend/pwritev_backend.h"

namespace ckpt {

struct Fault {
  enum Kind {
    kNone,
    kRefuse,       // the write cannot be started
    kFail,         // it starts and fails
    kTorn,         // half of it is written, then it fails
    kShort,        // half of it is written, and that is said
    kOddShort,     // the same, but not to a whole block
    kNothing,      // says that nothing was written
    kTooMuch,      // says that more was written than asked
    kKill,         // the process dies in the middle of it
    kFailSync,     // making the file durable fails
    kFailDirSync,  // making the directory durable fails
    kLateDirSync,  // the directory is not durable yet
    kKillSync,     // the process dies before the file is durable
    kKillDirSync,  // the process dies after the rename
  };
  Kind kind = kNone;
  int at = 0;  // number of the write, from 0; -1: all
  int error = EIO;
};

class FaultyBackend final : public FileBackend {
 public:
  explicit FaultyBackend(FileBackend& real, Fault fault = {}) : real_(real), fault_(fault) {}

  int writes() const { return writes_; }

  long attach(int fd, std::span<std::byte> staging, uint32_t in_flight) override {
    return real_.attach(fd, staging, in_flight);
  }
  long write(const WriteRequest& request) override {
    bool now = fault_.at == -1 || fault_.at == writes_;
    writes_++;
    if (!now) return real_.write(request);
    WriteRequest part = request;
    std::vector<iovec>& pieces = pieces_[request.slot];
    switch (fault_.kind) {
      case Fault::kRefuse:
        return -fault_.error;
      case Fault::kFail:
        return answer(request, -fault_.error);
      case Fault::kTorn:
        write_here(request, request.bytes / 2);
        return answer(request, -fault_.error);
      case Fault::kShort:
        // A single block cannot be halved: the write is whole then.
        part.bytes = request.bytes / 8192 * 4096;
        if (!request.pieces.empty()) part.pieces = pieces = first(request.pieces, part.bytes);
        return real_.write(part.bytes == 0 ? request : part);
      case Fault::kOddShort: {
        uint32_t n = request.bytes > 4096 ? request.bytes / 2 + 77 : request.bytes;
        write_here(request, n);
        return answer(request, n);
      }
      case Fault::kNothing:
        return answer(request, 0);
      case Fault::kTooMuch:
        return answer(request, long{request.bytes} + 4096);
      case Fault::kKill:
        write_here(request, request.bytes / 2);
        raise(SIGKILL);
        return 0;
      default:
        return real_.write(request);
    }
  }
  WriteResult wait() override {
    if (answers_ == 0) return real_.wait();
    return answer_[--answers_];
  }
  long sync(int fd) override {
    bool directory = syncs_++ > 0;
    if (fault_.kind == (directory ? Fault::kFailDirSync : Fault::kFailSync)) return -fault_.error;
    if (fault_.kind == (directory ? Fault::kKillDirSync : Fault::kKillSync)) raise(SIGKILL);
    if (directory && fault_.kind == Fault::kLateDirSync) return 0;
    return real_.sync(fd);
  }
  void detach() override { real_.detach(); }
  const char* name() const override { return "faulty"; }
  bool gathers() const override { return real_.gathers(); }

 private:
  static std::vector<iovec> first(std::span<const iovec> pieces, size_t bytes) {
    std::vector<iovec> list;
    for (iovec piece : pieces) {
      piece.iov_len = std::min(piece.iov_len, bytes);
      bytes -= piece.iov_len;
      if (piece.iov_len != 0) list.push_back(piece);
    }
    return list;
  }
  long answer(const WriteRequest& request, long result) {
    answer_[answers_++] = {request.slot, result};
    return 0;
  }
  void write_here(const WriteRequest& request, uint32_t bytes) {
    // Buffered: what is torn need not keep to blocks.
    int fd = ::open(torn_path, O_WRONLY);
    if (fd < 0) return;
    const std::vector<iovec> part = request.pieces.empty()
                                        ? std::vector<iovec>{{const_cast<std::byte*>(request.data), bytes}}
                                        : first(request.pieces, bytes);
    if (pwritev(fd, part.data(), static_cast<int>(part.size()), static_cast<off_t>(request.offset)) < 0)
      perror("pwritev");
    close(fd);
  }

 public:
  const char* torn_path = "";  // the temporary file

 private:
  FileBackend& real_;
  Fault fault_;
  int writes_ = 0, syncs_ = 0;
  int answers_ = 0;
  WriteResult answer_[64];
  std::vector<iovec> pieces_[64];  // by slot
};

}  // namespace ckpt
