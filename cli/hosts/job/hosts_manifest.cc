#include "cli/hosts/job/hosts_manifest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <memory>

#include "base/raii_fd.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

constexpr const char* kFormat = "ckpt_rt hosts";

// NAME.NNNNNN.hosts; 0: it is no such name.
uint64_t number_in(const std::string& name) {
  const std::string_view suffix = kHostsSuffix;
  if (!name.ends_with(suffix) || name[0] == '.') return 0;
  const std::string stem = name.substr(0, name.size() - suffix.size());
  const size_t dot = stem.rfind('.');
  uint64_t n = 0;
  if (dot == std::string::npos) return 0;
  std::from_chars(stem.data() + dot + 1, stem.data() + stem.size(), n);
  return n;
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(directory.c_str()), closedir);
  while (dir != nullptr) {
    const dirent* entry = readdir(dir.get());
    if (entry == nullptr) break;
    if (number_in(entry->d_name) != 0) names.push_back(entry->d_name);
  }
  std::sort(names.begin(), names.end(),
            [](const auto& a, const auto& b) { return number_in(a) < number_in(b); });
  return names;
}

Error io_error(const std::string& path, const char* what) {
  return failure(ExitCode::kIo, path, fmt::format("{}: {}", what, strerror(errno)), "see the disk");
}

std::string checksum_text(const std::string& bytes) {
  return fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size()));
}

}  // namespace

std::string checksum_of_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return "";
  std::string bytes(static_cast<size_t>(in.tellg()), '\0');
  in.seekg(0);
  if (!in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) return "";
  return checksum_text(bytes);
}

std::vector<std::string> hosts_manifests_in(const std::string& directory) {
  auto names = names_in(directory);
  for (std::string& name : names) name = directory + "/" + name;
  return names;
}

std::string hosts_manifest_path(const std::string& directory, const HostsManifest& m) {
  return fmt::format("{}/{}.{:06}{}", directory, m.name, m.id, kHostsSuffix);
}

std::vector<uint64_t> needed_by(const HostsManifest& manifest) {
  return manifest.redundancy.value("needs", std::vector<uint64_t>());
}

uint64_t last_hosts_checkpoint(const std::string& directory) {
  const auto names = names_in(directory);
  return names.empty() ? 0 : number_in(names.back());
}

// On an error it is certain that there is no such file.
Result<void> write_hosts_manifest(const std::string& directory, const HostsManifest& m) {
  Json j{{"format", kFormat}, {"version", 1},   {"id", m.id},
         {"job", m.job},      {"name", m.name}, {"time_ns", m.time_ns}};
  j["parts"] = Json::array();
  for (const auto& p : m.parts)
    j["parts"].push_back(
        {{"host", p.host}, {"address", p.address}, {"directory", p.directory}, {"checksum", p.checksum}});
  j["connections"] = Json::array();
  for (const auto& c : m.connections)
    j["connections"].push_back({c.one, c.other, c.part_of_one, c.part_of_other});
  j["table"] = m.table;
  if (!m.redundancy.empty()) j["redundancy"] = m.redundancy;
  if (!m.run.empty()) j["run"] = m.run;
  j["checksum"] = checksum_text(j.dump());
  const std::string text = j.dump(1) + "\n";
  const std::string path = hosts_manifest_path(directory, m);
  const std::string temporary = directory + "/." + path.substr(directory.size() + 1) + ".tmp";
  unlink(temporary.c_str());
  ScopedFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.valid()) return io_error(temporary, "cannot be created");
  bool good =
      write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(fd.get()) == 0;
  ScopedFd in(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  good = good && in.valid() && rename(temporary.c_str(), path.c_str()) == 0;
  if (good && fsync(in.get()) != 0) {
    const Error error = io_error(path, "cannot be made durable");
    if (rename(path.c_str(), temporary.c_str()) == 0) unlink(temporary.c_str());
    return error;
  }
  if (good) return {};
  const Error error = io_error(path, "cannot be written");
  unlink(temporary.c_str());
  return error;
}

Result<HostsManifest> read_hosts_manifest(const std::string& path) {
  ScopedFd fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat st;
  if (!fd.valid() || fstat(fd.get(), &st) != 0)
    return failure(errno == ENOENT ? ExitCode::kNotFound : ExitCode::kIo, path,
                   fmt::format("cannot be read: {}", strerror(errno)), "name a checkpoint");
  // As for images: a user who may write it decides what is started.
  if ((st.st_uid != geteuid() && st.st_uid != 0) || (st.st_mode & 022) != 0)
    return failure(ExitCode::kPermission, path, "belongs to someone else, or others may write it",
                   "use one of yours");
  std::string text(static_cast<size_t>(std::min<off_t>(st.st_size, 64 << 20)), '\0');
  if (read(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return io_error(path, "cannot be read");
  Json j = Json::parse(text, nullptr, false);
  const auto damaged = [&] {
    return failure(ExitCode::kImageDamaged, path, "is damaged, or no checkpoint of several hosts",
                   "use another one");
  };
  try {
    if (!j.is_object() || j.at("format") != kFormat) return damaged();
    if (j.at("version") != 1)
      return failure(ExitCode::kIncompatible, path, "is of another version", "use the ckpt that wrote it");
    const std::string checksum = j.at("checksum");
    j.erase("checksum");
    if (checksum != checksum_text(j.dump())) return damaged();
    HostsManifest m;
    m.id = j.at("id");
    m.job = j.at("job");
    m.name = j.at("name");
    m.time_ns = j.at("time_ns");
    for (const auto& p : j.at("parts"))
      m.parts.push_back({p.at("host"), p.at("address"), p.at("directory"), p.at("checksum")});
    for (const auto& c : j.at("connections")) {
      const bool named = c.size() == 4;  // older ones do not say which part has which end
      m.connections.push_back({c.at(0), c.at(1), named ? c.at(2) : "", named ? c.at(3) : ""});
    }
    m.table = j.at("table");
    m.redundancy = j.value("redundancy", Json::object());
    m.run = j.value("run", Json::object());
    if (m.parts.empty() || !m.table.is_object() || !m.table.contains("hosts") || !m.redundancy.is_object() ||
        !m.run.is_object())
      return damaged();
    for (const uint64_t id : needed_by(m)) {
      if (id >= m.id) return damaged();
    }
    if (m.redundancy.contains("parts") && m.redundancy["parts"].size() != m.parts.size()) return damaged();
    return m;
  } catch (const Json::exception&) {
    return damaged();
  }
}

std::string find_hosts_manifest(const std::string& path) {
  struct stat st;
  if (stat(path.c_str(), &st) != 0) return "";
  if (S_ISREG(st.st_mode)) return path.ends_with(kHostsSuffix) ? path : "";
  const auto names = names_in(path);
  return names.empty() ? "" : path + "/" + names.back();
}

Result<HostsManifest> read_hosts_checkpoint(const std::string& named, std::string* path) {
  *path = find_hosts_manifest(named);
  if (path->empty())
    return failure(ExitCode::kNotFound, named, "has no checkpoint of several hosts",
                   "name its directory or its .hosts file");
  return read_hosts_manifest(*path);
}

std::string newest_hosts_manifest(const std::string& directory, const std::string& job,
                                  std::vector<std::string>* passed_over) {
  const auto paths = hosts_manifests_in(directory);
  for (auto path = paths.rbegin(); path != paths.rend(); ++path) {
    auto manifest = read_hosts_manifest(*path);
    if (manifest.ok() && manifest->job == job) return *path;
    // A manifest that is gone meanwhile was removed because there are newer ones.
    if (!manifest.ok() && manifest.error().code != ExitCode::kNotFound && passed_over != nullptr)
      passed_over->push_back(
          fmt::format("{}; it is passed over for an older checkpoint", manifest.error().message()));
  }
  return "";
}

std::string newest_to_go_on_from(const std::string& directory, const std::string& job) {
  std::vector<std::string> passed_over;
  std::string path = newest_hosts_manifest(directory, job, &passed_over);
  for (const std::string& note : passed_over) fmt::print(stderr, "ckpt: {}\n", printable(note));
  return path;
}

}  // namespace ckpt::cli
