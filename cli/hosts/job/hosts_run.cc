#include "cli/hosts/job/hosts_run.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "cli/text/failure.h"

namespace ckpt::cli {

std::vector<std::string> launch_words(const std::string& launch, const std::string& host) {
  std::vector<std::string> words;
  std::string word;
  for (char c : launch + " ") {
    if (c != ' ') {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  bool named = false;
  for (std::string& w : words) {
    for (size_t at; (at = w.find("{host}")) != std::string::npos;) {
      w.replace(at, 6, host);
      named = true;
    }
  }
  if (!named) words.push_back(host);
  return words;
}

Result<std::vector<std::string>> split_hosts(const std::string& list, bool repeats) {
  std::vector<std::string> hosts;
  std::set<std::string> seen;
  std::string name;
  for (char c : list + ",") {
    if (c != ',') {
      name += c;
      continue;
    }
    const bool good =
        !name.empty() && name.size() < 64 && name[0] != '-' && name.find_first_of(" /\"\\{}") == name.npos;
    if (!good)
      return failure(ExitCode::kUsage, "--hosts", fmt::format("\"{}\" is no name of a host", name),
                     "give h1,h2,h3");
    if (!seen.insert(name).second && !repeats)
      return failure(ExitCode::kUsage, "--hosts", fmt::format("{} is named twice", name),
                     "one agent serves a host");
    hosts.push_back(std::move(name));
    name.clear();
  }
  return hosts;
}

Result<std::vector<unsigned>> hosts_for_checks(const std::string& text, const std::vector<std::string>& hosts,
                                               unsigned checks) {
  const auto wrong = [&](const std::string& what) {
    return failure(ExitCode::kUsage, "--checks-on", what,
                   fmt::format("name {} of --hosts, or say how many of the last of them", checks));
  };
  const auto named = [&](const std::string& host) { return std::find(hosts.begin(), hosts.end(), host); };
  std::vector<unsigned> holders;
  const bool number = text.find_first_not_of("0123456789") == text.npos && named(text) == hosts.end();
  if (number) {
    unsigned many = 0;
    std::from_chars(text.data(), text.data() + text.size(), many);
    for (size_t i = hosts.size() - std::min<size_t>(many, hosts.size()); i < hosts.size(); ++i)
      holders.push_back(static_cast<unsigned>(i));
  } else {
    auto names = split_hosts(text, false);
    if (!names.ok()) return names.error();
    for (const std::string& name : *names) {
      if (named(name) == hosts.end()) return wrong(fmt::format("{} is none of --hosts", name));
      holders.push_back(static_cast<unsigned>(named(name) - hosts.begin()));
    }
  }
  if (holders.size() == checks) return holders;
  return wrong(fmt::format("{} hosts do not fit a code with {} checks", holders.size(), checks));
}

Json remembered(const HostsRun& run) {
  const auto key = run.settings.find("CKPT_KEY_FILE");
  return {{"every_ns", run.every_ns},
          {"every_auto", run.every_auto},
          {"mtbf_ns", run.mtbf_ns},
          {"keep", run.keep},
          {"increments", run.increments},
          {"keeper", run.keeper},
          {"keeper_bytes", run.keeper_bytes},
          {"redundancy", run.redundancy},
          {"checks_on", run.checks_on},
          {"words", run.words},
          {"words_of_full", run.words_of_full},
          {"silence_ms", run.silence_ms},
          {"disk_every", run.disk_every},
          {"key_file", key != run.settings.end() ? key->second : ""}};
}

void remember(const Json& remembered, HostsRun& run) {
  run.every_ns = remembered.value("every_ns", run.every_ns);
  run.every_auto = remembered.value("every_auto", run.every_auto);
  run.mtbf_ns = remembered.value("mtbf_ns", run.mtbf_ns);
  run.keep = remembered.value("keep", run.keep);
  run.increments = remembered.value("increments", run.increments);
  run.keeper = remembered.value("keeper", run.keeper);
  run.keeper_bytes = remembered.value("keeper_bytes", run.keeper_bytes);
  run.redundancy = remembered.value("redundancy", run.redundancy);
  run.checks_on = remembered.value("checks_on", run.checks_on);
  run.words = remembered.value("words", run.words);
  run.words_of_full = remembered.value("words_of_full", run.words_of_full);
  run.disk_every = remembered.value("disk_every", run.disk_every);
  run.silence_ms = remembered.value("silence_ms", run.silence_ms);
  if (const std::string key = remembered.value("key_file", ""); !key.empty())
    run.settings["CKPT_KEY_FILE"] = key;
}

}  // namespace ckpt::cli
