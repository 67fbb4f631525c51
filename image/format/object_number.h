// One number for a file-like object, however it is reached: by descriptors or by mappings.
//
// Owner: image/format. Header only. Callers: the saving and the restoring side, any thread.
#pragma once

#include <cstdint>

namespace ckpt {

// OpenFileRecord::object and MappingRecord::object of the same device and inode are the same. Never 0.
constexpr uint64_t object_number(uint64_t device, uint64_t inode) {
  // The finalizer of splitmix64 over both: inodes of one device stay distinct, because it is a
  // bijection and the device only shifts its input.
  uint64_t x = inode + device * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  return x == 0 ? 1 : x;
}

// Of a segment of System V, whose inode is its number: it has the device of shared anonymous memory, which
// has numbers of its own.
constexpr uint64_t segment_object_number(uint64_t device, uint64_t shmid) {
  return object_number(~device, shmid);
}

}  // namespace ckpt
