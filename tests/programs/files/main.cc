#include "tests/programs/files/files.h"

int main(int argc, char** argv) {
  using namespace files;
  return victim::run_victim(
      {"files",
       "Reads, writes and maps files.",
       {{"offsets", "a shared offset and one of its own", 250'000, offsets},
        {"append", "O_APPEND", 200'000, append},
        {"deleted", "a file without a name", 400'000, deleted},
        {"pipe", "a pipe to itself with bytes in it", 1'500'000, files::pipe},
        {"memfd", "a memfd, read and written", 600'000, memfd},
        {"devshm", "a mapped file in /dev/shm", 8'000'000, devshm},
        {"sharedmap", "a shared mapping of a file", 8'000'000, shared_mapping},
        {"privatemap", "a private mapping of a file, partly changed", 8'000'000, private_mapping},
        {"state", "flags, devices, a directory, cwd, umask", 80'000, state},
        {"output", "lines on standard output", 700, output}}},
      argc, argv);
}
