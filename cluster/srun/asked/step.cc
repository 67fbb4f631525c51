#include "cluster/srun/asked/step.h"

#include <limits.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstring>

#include "cluster/srun/asked/multi_prog.h"
#include "cluster/srun/asked/output_name.h"
#include "cluster/srun/frames.h"
#include "cluster/srun/node/task_environment.h"
#include "cluster/srun/pmix/missing.h"

namespace ckpt::cluster::srun {

namespace {

// MPI names what its ranks share on a host by the name space: two steps with the same one destroy each
// other's.
Result<std::string> random_part() {
  uint64_t bits = 0;
  if (getrandom(&bits, sizeof(bits), 0) != sizeof(bits))
    return make_error(ExitCode::kSystem, errno, "no random number ({})", strerror(errno));
  return fmt::format("{:016x}", bits);
}

PmixStep pmix_of(const Step& step, int node) {
  if (step.options.mpi != Mpi::kPmix) return {};
  PmixStep p{"ckpt." + step.id() + "." + step.random, "", "", node, step.layout.count()};
  for (size_t i = 0; i < step.layout.nodes.size(); ++i) {
    p.nodes += (i == 0 ? "" : ",") + step.layout.nodes[i];
    std::string tasks;
    for (const int task : step.layout.tasks[i]) tasks += (tasks.empty() ? "" : ",") + std::to_string(task);
    p.tasks += (i == 0 ? "" : ";") + tasks;
  }
  return p;
}

std::string write_pmix(const PmixStep& p) {
  if (p.count == 0) return "";
  return pack({p.name, p.nodes, p.tasks, std::to_string(p.node), std::to_string(p.count)});
}

bool read_pmix(std::string_view bytes, PmixStep& p) {
  std::vector<std::string> parts;
  if (bytes.empty()) return true;
  if (!unpack(bytes, parts) || parts.size() != 5) return false;
  p = {parts[0], parts[1], parts[2], atoi(parts[3].c_str()), atoi(parts[4].c_str())};
  return true;
}

}  // namespace

Result<Step> read_step(const std::vector<std::string>& words, const Variables& variables) {
  Step step;
  auto options = parse_options(words, variables);
  if (!options.ok()) return options.error();
  step.options = std::move(*options);
  if (step.options.mpi == Mpi::kPmix) {
    if (const std::string why = missing_pmix(); !why.empty())
      return make_error(
          ExitCode::kUnsupported, 0,
          "--mpi=pmix: {}; use --mpi=pmi2 (MPICH and its kin), or mpirun in place of srun (Open "
          "MPI)",
          why);
  }
  auto allocation = read_allocation(variables);
  if (!allocation.ok()) return allocation.error();
  step.allocation = std::move(*allocation);
  auto layout = lay_out(step.options, step.allocation);
  if (!layout.ok()) return layout.error();
  step.layout = std::move(*layout);
  auto random = random_part();
  if (!random.ok()) return random.error();
  step.random = std::move(*random);
  char here[PATH_MAX];
  if (getcwd(here, sizeof(here)) != nullptr) step.directory = here;
  if (const std::string& wanted = step.options.directory; !wanted.empty())
    step.directory = wanted[0] == '/' ? wanted : step.directory + "/" + wanted;
  if (step.options.multi_prog) {
    auto programs = read_multi_prog(step.options.command, step.layout.count());
    if (!programs.ok()) return programs.error();
    step.programs = std::move(*programs);
  } else {
    step.programs = {step.options.command};
  }
  for (const std::string* stream : {&step.options.input, &step.options.output, &step.options.error}) {
    if (stream->empty() || is_file(*stream) || *stream == "all" || *stream == "none") continue;
    if (stream->size() > 8 || std::stoi(*stream) >= step.layout.count())
      return make_error(ExitCode::kUsage, 0, "--input, --output, --error: there is no task {}", *stream);
  }
  return step;
}

NodeOrder order_for(const Step& step, int node, char** environment) {
  NodeOrder order;
  order.directory = step.directory;
  order.append = step.options.append;
  order.unbuffered = step.options.unbuffered;
  order.has_pmi = serves_pmi(step.options.mpi);
  order.pmix = pmix_of(step, node);
  order.environment = environment_of_step(step, environment);
  order.inherited = read_inherited();
  const std::string& output = step.options.output;
  const std::string& error = step.options.error.empty() ? output : step.options.error;
  int place = 0;
  for (const int task : step.layout.tasks[static_cast<size_t>(node)]) {
    TaskOrder t;
    t.task = task;
    t.program = step.program_of(task);
    const auto own = [&](const std::string& name) {
      if (is_opened_by_node(name)) return file_name(name, step, task, node);
      return std::string(name == "none" ? "/dev/null" : "");
    };
    t.input = own(step.options.input);
    t.output = own(output);
    t.error = own(error);
    // Of one task only: the others have nothing to read.
    if (const std::string& in = step.options.input; in != "all" && !is_file(in) && in != std::to_string(task))
      t.input = "/dev/null";
    t.processors = order_of_binding(step.options.binding, place, step.options.cpus_per_task);
    t.environment = environment_of_task(step, node, place++, task);
    order.tasks.push_back(std::move(t));
  }
  return order;
}

std::string write_order(const NodeOrder& order) {
  std::vector<std::string> all{order.directory,
                               std::string() + (order.append ? 'a' : '-') + (order.unbuffered ? 'u' : '-') +
                                   (order.has_pmi ? 'p' : '-'),
                               pack(order.environment), write_inherited(order.inherited),
                               write_pmix(order.pmix)};
  for (const TaskOrder& t : order.tasks) {
    std::vector<std::string> environment;
    for (const auto& [name, value] : t.environment) {
      environment.push_back(name);
      environment.push_back(value);
    }
    all.push_back(pack({std::to_string(t.task), pack(t.program), t.input, t.output, t.error, t.processors,
                        pack(environment)}));
  }
  return pack(all);
}

bool read_order(std::string_view bytes, NodeOrder& order) {
  std::vector<std::string> all, parts, environment;
  if (!unpack(bytes, all) || all.size() < 5 || all[1].size() != 3 || !unpack(all[2], order.environment) ||
      !read_inherited(all[3], order.inherited) || !read_pmix(all[4], order.pmix))
    return false;
  order.directory = all[0];
  order.append = all[1][0] == 'a';
  order.unbuffered = all[1][1] == 'u';
  order.has_pmi = all[1][2] == 'p';
  for (size_t i = 5; i < all.size(); ++i) {
    TaskOrder t;
    if (!unpack(all[i], parts) || parts.size() != 7 || !unpack(parts[1], t.program) || t.program.empty() ||
        !unpack(parts[6], environment) || environment.size() % 2 != 0)
      return false;
    t.task = atoi(parts[0].c_str());
    t.input = parts[2];
    t.output = parts[3];
    t.error = parts[4];
    t.processors = parts[5];
    for (size_t k = 0; k < environment.size(); k += 2) t.environment[environment[k]] = environment[k + 1];
    order.tasks.push_back(std::move(t));
  }
  return true;
}

}  // namespace ckpt::cluster::srun
