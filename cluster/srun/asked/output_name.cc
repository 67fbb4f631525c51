#include "cluster/srun/asked/output_name.h"

#include <pwd.h>
#include <stdlib.h>
#include <unistd.h>

#include <cctype>

#include "cluster/srun/asked/step.h"

namespace ckpt::cluster::srun {

namespace {

// The name's parts: calls literal(text) and field(letter, width).
template <typename Literal, typename Field>
void for_each_part(const std::string& name, Literal&& literal, Field&& field) {
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] != '%') {
      literal(std::string(1, name[i]));
      continue;
    }
    size_t at = i + 1;
    int width = 0;
    while (at < name.size() && isdigit(static_cast<unsigned char>(name[at])) && width < 10)
      width = width * 10 + (name[at++] - '0');
    if (at >= name.size()) {
      literal(name.substr(i));
      return;
    }
    if (name[at] == '%')
      literal("%");
    else
      field(name[at], width < 10 ? width : 10);
    i = at;
  }
}

std::string number(long value, int width) {
  std::string text = std::to_string(value);
  if (static_cast<int>(text.size()) < width) text.insert(0, static_cast<size_t>(width) - text.size(), '0');
  return text;
}

std::string user_name() {
  const passwd* entry = getpwuid(geteuid());
  return entry != nullptr ? entry->pw_name : std::to_string(geteuid());
}

}  // namespace

bool is_file(const std::string& stream) {
  return stream != "all" && stream != "none" && stream.find_first_not_of("0123456789") != stream.npos;
}

bool is_opened_by_node(const std::string& name) {
  bool by_node = false;
  for_each_part(
      name, [](const std::string&) {},
      [&](char c, int) { by_node = by_node || c == 't' || c == 'n' || c == 'N'; });
  return is_file(name) && by_node;
}

std::string file_name(const std::string& name, const Step& step, int task, int node) {
  // A backslash: the name as it stands.
  if (const size_t at = name.find('\\'); at != name.npos) return name.substr(0, at) + name.substr(at + 1);
  std::string text;
  const auto variable = [](const char* of, const std::string& otherwise) {
    const char* value = getenv(of);
    return value != nullptr ? std::string(value) : otherwise;
  };
  for_each_part(
      name, [&](const std::string& literal) { text += literal; },
      [&](char c, int width) {
        const std::string& job = step.allocation.job_id;
        switch (c) {
          case 't':
            text += number(task < 0 ? 0 : task, width);
            break;
          case 'n':
            text += number(node < 0 ? 0 : node, width);
            break;
          case 'N':
            text += step.layout.nodes[static_cast<size_t>(node < 0 ? 0 : node)];
            break;
          case 's':
            text += number(step.number, width);
            break;
          case 'J':
            text += step.id();
            break;
          case 'j':
            text += number(atol(job.c_str()), width);
            break;
          case 'A':
            text += number(atol(variable("SLURM_ARRAY_JOB_ID", job).c_str()), width);
            break;
          case 'a':
            text += number(atol(variable("SLURM_ARRAY_TASK_ID", "4294967294").c_str()), width);
            break;
          case 'u':
            text += user_name();
            break;
          case 'x':
            text += step.options.job_name.empty() ? variable("SLURM_JOB_NAME", "") : step.options.job_name;
            break;
          default:
            text += std::string("%") + c;
        }
      });
  return text;
}

}  // namespace ckpt::cluster::srun
