#include "cli/keeper/disk/save_checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/checks/named_points.h"
#include "base/raii_fd.h"
#include "cli/text/failure.h"
#include "image/format/checksum.h"
#include "image/format/image_name.h"
#include "image/format/image_probe.h"
#include "image/format/saved_file_names.h"
#include "image/read/image_chain.h"
#include "image/read/manifest.h"
#include "image/read/sources/reading_key.h"
#include "image/rewrite/image_rewrite.h"
#include "image/write/directory/image_directory.h"
#include "job/directory/directory_lock.h"
#include "job/directory/job_directory.h"
#include "job/format/job_hold.h"

namespace ckpt::cli {

namespace {

Error cannot(const std::string& what, const char* how) {
  return failure(ExitCode::kIo, what, fmt::format("cannot be {} ({})", how, errno_name(errno)),
                 "see the disk");
}

Result<uint64_t> rewrite(const ImageChain& image, int directory, const std::string& name) {
  SinkOptions options;
  options.codec = codec_of(image);
  options.replace = true;
  options.key = reading_key();
  auto stats = rewrite_as_full(image, options, directory, name.c_str(), {});
  if (!stats.ok()) return stats.error();
  return stats->bytes_written;
}

Result<void> copy_file(int from, int to, const char* name) {
  struct stat st {};
  const ScopedFd in(openat(from, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!in.valid() || fstat(in.get(), &st) != 0) return cannot(name, "read");
  const ScopedFd out(openat(to, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!out.valid()) return cannot(name, "made");
  std::vector<char> step(1 << 20);
  for (;;) {
    const ssize_t n = read(in.get(), step.data(), step.size());
    if (n < 0) return cannot(name, "read");
    if (n == 0) break;
    if (write(out.get(), step.data(), static_cast<size_t>(n)) != n) return cannot(name, "written");
  }
  const timespec times[2] = {st.st_atim, st.st_mtim};
  if (futimens(out.get(), times) != 0 || fsync(out.get()) != 0) return cannot(name, "written");
  return {};
}

void remove_directory(int at, const std::string& name) {
  const int fd = openat(at, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(fd < 0 ? nullptr : fdopendir(fd), closedir);
  std::vector<std::string> names;
  while (dir != nullptr) {
    const dirent* entry = readdir(dir.get());
    if (entry == nullptr) break;
    names.emplace_back(entry->d_name);
  }
  for (const std::string& inside : names) unlinkat(fd, inside.c_str(), 0);
  unlinkat(at, name.c_str(), AT_REMOVEDIR);
}

// Copies the saved files beside an image. Most images have none.
Result<void> copy_saved_files(const std::string& from, int to, const std::string& name) {
  const ScopedFd in(open((from + "/" + name).c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!in.valid()) return errno == ENOENT ? Result<void>() : Result<void>(cannot(name, "read"));
  remove_directory(to, name);
  if (mkdirat(to, name.c_str(), 0700) != 0) return cannot(name, "made");
  const ScopedFd out(openat(to, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  const int again = openat(in.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(again < 0 ? nullptr : fdopendir(again), closedir);
  if (!out.valid() || dir == nullptr) return cannot(name, "read");
  for (const dirent* entry; (entry = readdir(dir.get())) != nullptr;) {
    struct stat st {};
    if (fstatat(in.get(), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) return cannot(name, "read");
    char target[4096];
    if (S_ISREG(st.st_mode)) {
      CKPT_TRY(copy_file(in.get(), out.get(), entry->d_name));
    } else if (S_ISLNK(st.st_mode)) {
      const ssize_t n = readlinkat(in.get(), entry->d_name, target, sizeof(target) - 1);
      target[n > 0 ? n : 0] = '\0';
      if (n <= 0 || symlinkat(target, out.get(), entry->d_name) != 0) return cannot(name, "copied");
    }
  }
  if (fsync(out.get()) != 0) return cannot(name, "written");
  return {};
}

// The images are others by their bytes; all else is as it was.
Result<void> write_manifest(const std::string& from, int to, const Manifest& manifest) {
  std::ifstream in(from + "/" + kManifestName, std::ios::binary);
  const std::string was((std::istreambuf_iterator<char>(in)), {});
  nlohmann::ordered_json j = nlohmann::ordered_json::parse(was, nullptr, false);
  if (!j.is_object() || !j.contains("files")) return cannot(kManifestName, "read");
  j.erase("checksum");
  for (nlohmann::ordered_json& file : j["files"]) {
    const auto name = file.value("name", std::string());
    const ScopedFd image(openat(to, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    auto brief = probe_image(image.get(), name.c_str(), reading_key());
    if (!brief.ok()) return brief.error();
    file["bytes"] = brief->file_bytes;
    file["xxh3"] = fmt::format("{:016x}", brief->meta_checksum);
  }
  std::string text = j.dump(1);
  while (!text.empty() && (text.back() == '}' || text.back() == '\n')) text.pop_back();
  text += ",\n ";
  text += fmt::format("\"checksum\": \"{:016x}\"\n}}\n", checksum_of(std::as_bytes(std::span(text))));
  auto whole = parse_manifest(text, kManifestName);
  if (!whole.ok() || whole->members.size() != manifest.members.size())
    return failure(ExitCode::kInternal, kManifestName, "was not understood", "report it");
  const ScopedFd out(openat(to, kManifestName, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!out.valid() || write(out.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      fsync(out.get()) != 0)
    return cannot(kManifestName, "written");
  return {};
}

// Another of that name, of a job that was brought back from before it, makes room.
Result<uint64_t> save_job(const std::string& from, const std::string& name, int to, uint32_t keep) {
  const std::string path = from + "/" + name;
  auto manifest = read_manifest(path);
  if (!manifest.ok()) return manifest.error();
  auto held = job::hold_job(path.c_str());
  if (!held.ok()) return held.error();
  std::vector<ImageChain> images;
  for (const ManifestFile& file : manifest->files) {
    auto chain = ImageChain::open(path + "/" + file.name);
    if (!chain.ok()) return chain.error();
    images.push_back(std::move(*chain));
  }
  job::ParsedJobName parsed{};
  if (!job::parse_job_name(name, &parsed)) return cannot(name, "understood");
  job::DirectoryLock lock;
  if (!lock.try_take(to))
    return failure(ExitCode::kUnavailable, name, "a checkpoint is being written there",
                   "it is saved again later");
  job::remove_dead_jobs(to);
  const job::JobName names = job::compose_job_name(parsed.comm, parsed.sequence);
  auto temporary = job::make_temporary(to, names, nullptr);
  if (!temporary.ok()) return temporary.error();
  const auto undo = [&](const Error& error) {
    job::remove_job_directory(to, static_cast<const char*>(names.temporary));
    return error;
  };
  uint64_t bytes = 0;
  for (size_t i = 0; i < images.size(); ++i) {
    auto written = rewrite(images[i], temporary->get(), manifest->files[i].name);
    if (!written.ok()) return undo(written.error());
    bytes += *written;
    points::at("disk.image");
  }
  if (auto r = copy_saved_files(path, temporary->get(), saved_files_directory_of(kJobSavedFiles).text);
      !r.ok())
    return undo(r.error());
  if (auto r = write_manifest(path, temporary->get(), *manifest); !r.ok()) return undo(r.error());
  points::at("disk.manifest");
  job::remove_job_directory(to, static_cast<const char*>(names.text));
  if (auto r = job::commit_directory(to, temporary->get(), names); !r.ok()) return undo(r.error());
  points::at("disk.named");
  uint8_t id[16];
  for (size_t i = 0; i < sizeof(id); ++i)
    id[i] = static_cast<uint8_t>(std::stoi(manifest->job.substr(2 * i, 2), nullptr, 16));
  auto pruned = job::prune_jobs(to, id, keep, reading_key());
  if (!pruned.ok()) return pruned.error();
  return bytes;
}

Result<uint64_t> save_image(const std::string& from, const std::string& name, int to, uint32_t keep) {
  auto image = ImageChain::open(from + "/" + name);
  if (!image.ok()) return image.error();
  CKPT_TRY(copy_saved_files(from, to, saved_files_directory_of(name).text));
  points::at("disk.image");
  auto bytes = rewrite(*image, to, name);
  points::at("disk.named");
  if (!bytes.ok()) return bytes;
  auto pruned = prune_images(to, image->brief().run_id, keep, reading_key());
  if (!pruned.ok()) return pruned.error();
  remove_dead_leftovers(to);
  return bytes;
}

}  // namespace

bool parse_checkpoint_name(const std::string& name, std::string& program, uint64_t& sequence) {
  job::ParsedJobName job{};
  ParsedImageName image{};
  if (job::parse_job_name(name, &job) && !job.temporary) {
    sequence = job.sequence;
    program = std::string(job.comm);
    return true;
  }
  if (!parse_image_name(name, &image) || image.temporary) return false;
  sequence = image.sequence;
  program = fmt::format("{}.{}", image.comm, image.pid);
  return true;
}

Result<uint64_t> save_checkpoint(const std::string& from, const std::string& name, const std::string& to,
                                 uint32_t keep) {
  auto directory = open_image_directory(to.c_str());
  if (!directory.ok()) return directory.error();
  return name.ends_with(kJobSuffix) ? save_job(from, name, directory->get(), keep)
                                    : save_image(from, name, directory->get(), keep);
}

}  // namespace ckpt::cli
