#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/programs/files/files.h"

namespace files {

using namespace victim;

namespace {

void write_all(int fd, const void* bytes, size_t n, const char* what) {
  require_call(write(fd, bytes, n) == static_cast<ssize_t>(n), what);
}

}  // namespace

std::string offsets(uint64_t iterations) {
  int writer = open("files.offsets", O_RDWR | O_CREAT | O_TRUNC, 0600);
  require_call(writer >= 0, "open files.offsets");
  int twin = dup(writer);
  int reader = open("files.offsets", O_RDONLY | O_CLOEXEC);
  require_call(twin >= 0 && reader >= 0, "dup and open");
  for (uint64_t n = 0; n < iterations; ++n) {
    uint64_t value = mix(n);
    write_all(n % 3 == 0 ? twin : writer, &value, sizeof(value), "write");
    off_t at = lseek(n % 2 == 0 ? twin : writer, 0, SEEK_CUR);
    require(at == static_cast<off_t>((n + 1) * 8), "offsets: at {} after {} words", at, n + 1);
    if (n % 2 == 0) continue;
    // One word behind for every two written.
    uint64_t got = 0, expected = mix(n / 2);
    require_call(read(reader, &got, sizeof(got)) == sizeof(got), "read");
    require(got == expected, "offsets: the reader's word {} is {:x}, not {:x}", n / 2, got, expected);
  }
  struct stat st;
  require_call(fstat(writer, &st) == 0, "fstat");
  require(st.st_size == static_cast<off_t>(iterations * 8), "offsets: the file has {} bytes", st.st_size);
  uint64_t digest = 0;
  for (uint64_t n = 0; n < iterations; ++n) {
    uint64_t got = 0;
    require_call(pread(writer, &got, sizeof(got), static_cast<off_t>(n * 8)) == sizeof(got), "pread");
    require(got == mix(n), "offsets: word {} is {:x}", n, got);
    digest = mix(digest ^ got);
  }
  for (int fd : {writer, twin, reader}) close(fd);
  return fmt::format("{} words, digest {:016x}", iterations, digest);
}

std::string append(uint64_t iterations) {
  int fd = open("files.append", O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  require_call(fd >= 0, "open files.append");
  std::FILE* stream = fdopen(dup(fd), "a");
  require_call(stream != nullptr, "fdopen");
  size_t length = 0;
  for (uint64_t n = 0; n < iterations; ++n) {
    std::string line = fmt::format("{} {:x}\n", n, mix(n));
    length += line.size();
    if (n % 2 == 0) {
      write_all(fd, line.data(), line.size(), "write");
    } else {
      require_call(std::fputs(line.c_str(), stream) >= 0 && std::fflush(stream) == 0, "fputs");
    }
  }
  std::string contents(length + 1, '\0');
  require_call(pread(fd, contents.data(), contents.size(), 0) == static_cast<ssize_t>(length), "pread");
  size_t at = 0;
  for (uint64_t n = 0; n < iterations; ++n) {
    std::string line = fmt::format("{} {:x}\n", n, mix(n));
    require(contents.compare(at, line.size(), line) == 0, "append: line {} is {:.30}", n,
            contents.substr(at, 30));
    at += line.size();
  }
  std::fclose(stream);
  close(fd);
  return fmt::format("{} lines, {} bytes", iterations, length);
}

namespace {

// Random reads and writes at random places of a file that only we have, against a copy in memory.
std::string random_access(const char* name, int fd, uint64_t iterations, uint64_t seed) {
  constexpr size_t kBytes = 300'000;
  require_call(ftruncate(fd, kBytes) == 0, "ftruncate");
  std::vector<unsigned char> copy(kBytes), buffer(5000);
  Random random(seed);
  for (uint64_t n = 0; n < iterations; ++n) {
    size_t length = 1 + random.below(n % 16 == 0 ? buffer.size() : 64);
    size_t at = random.below(kBytes - length);
    if (random.below(2) == 0) {
      for (size_t i = 0; i < length; ++i) buffer[i] = static_cast<unsigned char>(mix(n + i));
      std::memcpy(copy.data() + at, buffer.data(), length);
      require_call(pwrite(fd, buffer.data(), length, static_cast<off_t>(at)) == static_cast<ssize_t>(length),
                   "pwrite");
    } else {
      require_call(lseek(fd, static_cast<off_t>(at), SEEK_SET) == static_cast<off_t>(at), "lseek");
      require_call(read(fd, buffer.data(), length) == static_cast<ssize_t>(length), "read");
      require(std::memcmp(copy.data() + at, buffer.data(), length) == 0, "{}: other bytes at {} in step {}",
              name, at, n);
    }
  }
  uint64_t digest = 0;
  for (size_t i = 0; i < kBytes; i += 8) {
    uint64_t v = 0;
    require_call(pread(fd, &v, sizeof(v), static_cast<off_t>(i)) == sizeof(v), "pread");
    digest = mix(digest ^ v);
  }
  close(fd);
  return fmt::format("{} reads and writes, digest {:016x}", iterations, digest);
}

}  // namespace

std::string deleted(uint64_t iterations) {
  char path[] = "files.deleted.XXXXXX";
  int fd = mkstemp(path);
  require_call(fd >= 0 && unlink(path) == 0, "mkstemp and unlink");
  return random_access("deleted", fd, iterations, 900);
}

std::string memfd(uint64_t iterations) {
  int fd = memfd_create("files", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  require_call(fd >= 0, "memfd_create");
  return random_access("memfd", fd, iterations, 901);
}

// There are always 1 to 5000 words in the pipe.
std::string pipe(uint64_t iterations) {
  int ends[2];
  require_call(::pipe2(ends, O_CLOEXEC) == 0, "pipe2");
  Random random(902);
  uint64_t put = 0, taken = 0, digest = 0;
  std::vector<uint64_t> words(300);
  while (taken < iterations) {
    uint64_t room = 5000 - (put - taken);
    uint64_t n = 1 + random.below(words.size());
    if (n <= room && (put == taken || random.below(2) == 0)) {
      for (uint64_t i = 0; i < n; ++i) words[i] = mix(put++);
      write_all(ends[1], words.data(), n * 8, "write to a pipe");
    } else {
      n = std::min<uint64_t>(n, put - taken);
      require_call(read(ends[0], words.data(), n * 8) == static_cast<ssize_t>(n * 8), "read from a pipe");
      for (uint64_t i = 0; i < n; ++i) {
        require(words[i] == mix(taken), "pipe: word {} is {:x}", taken, words[i]);
        digest = mix(digest ^ words[i]);
        ++taken;
      }
    }
  }
  close(ends[0]);
  close(ends[1]);
  return fmt::format("{} words, digest {:016x}", taken, digest);
}

std::string state(uint64_t iterations) {
  int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  int zero = open("/dev/zero", O_RDONLY | O_NONBLOCK);
  require_call(null >= 0 && zero >= 0, "open devices");
  int high = fcntl(null, F_DUPFD, 100);
  require_call(high >= 100, "F_DUPFD");
  char cwd[4096];
  require_call(getcwd(cwd, sizeof(cwd)) != nullptr, "getcwd");
  umask(027);
  const char* directory_name = "files.directory";
  mkdir(directory_name, 0700);
  constexpr unsigned kEntries = 200;
  for (unsigned i = 0; i < kEntries; ++i) {
    int fd = open(fmt::format("{}/{}", directory_name, i).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
    require_call(fd >= 0, "open in the directory");
    close(fd);
  }
  DIR* directory = opendir(directory_name);
  require_call(directory != nullptr, "opendir");
  std::vector<bool> seen(kEntries);
  unsigned found = 0;
  for (uint64_t n = 0; n < iterations; ++n) {
    require(fcntl(null, F_GETFD) == FD_CLOEXEC && fcntl(zero, F_GETFD) == 0 && fcntl(high, F_GETFD) == 0,
            "state: close-on-exec flags are {} {} {}", fcntl(null, F_GETFD), fcntl(zero, F_GETFD),
            fcntl(high, F_GETFD));
    require((fcntl(null, F_GETFL) & O_ACCMODE) == O_WRONLY && (fcntl(zero, F_GETFL) & O_NONBLOCK) != 0,
            "state: flags are {:o} {:o}", fcntl(null, F_GETFL), fcntl(zero, F_GETFL));
    require_call(write(high, "x", 1) == 1, "write to /dev/null");
    char byte = 'x';
    require_call(read(zero, &byte, 1) == 1 && byte == 0, "read of /dev/zero");
    char now[4096];
    require_call(getcwd(now, sizeof(now)) != nullptr, "getcwd");
    require(std::strcmp(cwd, now) == 0, "state: the current directory became {}", now);
    mode_t mask = umask(027);
    require(mask == 027, "state: the umask became {:o}", mask);
    require(fcntl(300, F_GETFD) == -1, "state: descriptor 300 is open");
    if (n * kEntries / iterations > found) {
      dirent* entry = readdir(directory);
      while (entry != nullptr && entry->d_name[0] == '.') entry = readdir(directory);
      require(entry != nullptr, "state: the directory ends after {} entries", found);
      unsigned i = static_cast<unsigned>(std::stoul(entry->d_name));
      require(!seen[i], "state: directory entry {} came twice", i);
      seen[i] = true;
      ++found;
    }
  }
  closedir(directory);
  for (int fd : {null, zero, high}) close(fd);
  return fmt::format("{} looks, {} directory entries", iterations, found);
}

std::string output(uint64_t iterations) {
  for (uint64_t n = 0; n < iterations; ++n) {
    std::printf("line %llu\n", static_cast<unsigned long long>(n));
    // Some lines wait in libc's buffer for a while.
    if (n % 5 == 0) std::fflush(stdout);
    usleep(2000);
  }
  return fmt::format("{} lines", iterations);
}

}  // namespace files
