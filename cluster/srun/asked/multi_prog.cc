#include "cluster/srun/asked/multi_prog.h"

#include <errno.h>

#include <fstream>
#include <sstream>

#include "cluster/srun/asked/hostlist.h"

namespace ckpt::cluster::srun {

namespace {

// Words of a line; quotes and backslashes as in a shell.
std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '\\' && quote != '\'' && i + 1 < line.size()) {
      word += line[++i];
      in_word = true;
    } else if (quote != 0) {
      if (c == quote)
        quote = 0;
      else
        word += c;
    } else if (c == '\'' || c == '"') {
      quote = c;
      in_word = true;
    } else if (c == ' ' || c == '\t') {
      if (in_word) words.push_back(std::move(word));
      word.clear();
      in_word = false;
    } else if (c == '#' && !in_word) {
      break;
    } else {
      word += c;
      in_word = true;
    }
  }
  if (in_word) words.push_back(std::move(word));
  return words;
}

std::string with_numbers(const std::string& word, int task, int place) {
  std::string text;
  for (size_t i = 0; i < word.size(); ++i) {
    const char next = i + 1 < word.size() ? word[i + 1] : 0;
    if (word[i] == '%' && (next == 't' || next == 'o')) {
      text += std::to_string(next == 't' ? task : place);
      ++i;
    } else {
      text += word[i];
    }
  }
  return text;
}

}  // namespace

Result<std::vector<std::vector<std::string>>> parse_multi_prog(const std::string& text,
                                                               const std::vector<std::string>& command,
                                                               int tasks) {
  std::vector<std::vector<std::string>> programs(static_cast<size_t>(tasks));
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    while (line.ends_with('\\') && !lines.eof()) {
      std::string more;
      std::getline(lines, more);
      line.replace(line.size() - 1, 1, more);
    }
    const std::vector<std::string> words = words_of(line);
    if (words.empty()) continue;
    std::vector<int> which;
    if (words[0] == "*") {
      for (int t = 0; t < tasks; ++t) {
        if (programs[static_cast<size_t>(t)].empty()) which.push_back(t);
      }
    } else {
      auto names = expand_hostlist("[" + words[0] + "]");
      if (!names.ok())
        return make_error(ExitCode::kUsage, 0, "{}: {}: are no tasks", command[0], words[0].substr(0, 60));
      for (const std::string& name : *names) {
        if (name.size() < 9 && std::stoi(name) < tasks) which.push_back(std::stoi(name));
      }
    }
    if (words.size() < 2)
      return make_error(ExitCode::kUsage, 0, "{}: {}: names no program", command[0], words[0].substr(0, 60));
    int place = 0;
    for (const int task : which) {
      auto& program = programs[static_cast<size_t>(task)];
      if (!program.empty())
        return make_error(ExitCode::kUsage, 0, "{}: task {} has two programs", command[0], task);
      for (size_t w = 1; w < words.size(); ++w) program.push_back(with_numbers(words[w], task, place));
      program.insert(program.end(), command.begin() + 1, command.end());
      ++place;
    }
  }
  for (int t = 0; t < tasks; ++t) {
    if (programs[static_cast<size_t>(t)].empty())
      return make_error(ExitCode::kUsage, 0, "{}: task {} has no program", command[0], t);
  }
  return programs;
}

Result<std::vector<std::vector<std::string>>> read_multi_prog(const std::vector<std::string>& command,
                                                              int tasks) {
  std::ifstream file(command[0]);
  if (!file)
    return make_error(ExitCode::kNotFound, errno, "{}: cannot be read ({})", command[0], errno_name(errno));
  std::ostringstream text;
  text << file.rdbuf();
  return parse_multi_prog(text.str(), command, tasks);
}

}  // namespace ckpt::cluster::srun
