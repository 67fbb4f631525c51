#include "cli/back/descriptors/shared_parts.h"

#include <map>

#include "restart/descriptors/builder.h"

namespace ckpt::cli {

namespace {

// Kinds whose object number names one object. (Files of anon_inode, such as an eventfd, all have the same
// number.)
bool names_one_thing(const ParsedOpenFile& f) {
  switch (kind_of(f)) {
    case OpenFileKind::kPipe:
    case OpenFileKind::kFifo:
    case OpenFileKind::kMemfd:
    case OpenFileKind::kSocketPair:
    case OpenFileKind::kSocket:
    case OpenFileKind::kConnection:
      return true;
    case OpenFileKind::kRegular:
      return (f.record.flags & kOpenFileDeleted) != 0;
    default:
      return false;
  }
}

std::set<uint64_t> objects_of(const ParsedOpenFile& f) {
  std::set<uint64_t> all{f.record.object};
  if (kind_of(f) == OpenFileKind::kSocketPair) all.insert(f.record.value);
  for_each_detail<SocketLinkDetail>(f, OpenFileDetail::kSocketLink, [&](const SocketLinkDetail& l, Blob) {
    all.insert({l.peer, l.listener});
  });
  all.erase(0);
  return all;
}

}  // namespace

std::vector<SharedParts> find_shared_parts(const Manifest& manifest,
                                           const std::vector<std::pair<int, const ImageMeta*>>& members) {
  std::vector<SharedParts> shared(members.size());
  std::map<int, size_t> by_pid;
  std::map<uint64_t, std::set<size_t>> who_opens, who_maps;
  for (size_t m = 0; m < members.size(); ++m) {
    shared[m].of_job = true;
    by_pid[members[m].first] = m;
    for (const auto& f : members[m].second->open_files) {
      if (names_one_thing(f)) who_opens[f.record.object].insert(m);
    }
    for (const auto& mapping : members[m].second->mappings) {
      if (mapping.record.object != 0) who_maps[mapping.record.object].insert(m);
    }
  }
  for (const auto& users : manifest.descriptions) {
    std::set<int> pids;
    for (const ManifestUser& u : users) pids.insert(u.pid);
    for (const ManifestUser& u : users) {
      const auto m = by_pid.find(u.pid);
      if (pids.size() > 1 && m != by_pid.end()) shared[m->second].files.insert(u.open_file);
    }
  }
  for (size_t m = 0; m < members.size(); ++m) {
    for (const auto& f : members[m].second->open_files) {
      if (!names_one_thing(f)) continue;
      // Its writer had ended by then: only its reader can put back what is left in it.
      if (kind_of(f) == OpenFileKind::kPipe && f.record.value == kPipeEndGone)
        shared[m].files.insert(f.record.id);
      for (uint64_t object : objects_of(f)) {
        const auto who = who_opens.find(object);
        if (who == who_opens.end() || (who->second.size() == 1 && *who->second.begin() == m)) continue;
        shared[m].files.insert(f.record.id);
      }
    }
    for (const auto& [object, who] : who_maps) {
      if (who.size() > 1 && who.count(m) != 0) shared[m].objects.insert(object);
    }
  }
  return shared;
}

}  // namespace ckpt::cli
