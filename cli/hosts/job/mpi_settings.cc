#include "cli/hosts/job/mpi_settings.h"

#include <fmt/core.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string_view>

#include "cli/hosts/job/mpi_launcher.h"

namespace ckpt::cli {

namespace {

constexpr std::string_view kOpenMpi = "OMPI_MCA_";
constexpr const char* kEnvironment = "the environment";

bool is_of_mpi(std::string_view variable) {
  for (const std::string_view start : {"OMPI_MCA_", "OMPI_ALLOW_", "PMIX_MCA_", "PRTE_MCA_", "UCX_", "FI_",
                                       "MPIR_CVAR_", "HCOLL_", "PSM2_", "PSM3_"}) {
    if (variable.starts_with(start)) return true;
  }
  return false;
}

std::string trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) - begin + 1));
}

// Lines NAME = VALUE. Settings that are there already stay.
void add_file(const std::string& path, std::string_view start, MpiSettings& settings) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const size_t equals = line.find('=');
    const std::string name = trimmed(std::string_view(line).substr(0, equals));
    if (equals == line.npos || name.empty() || name[0] == '#') continue;
    if (start.empty() && !name.starts_with("UCX_")) continue;
    settings.emplace(std::string(start) + name,
                     MpiSetting{trimmed(std::string_view(line).substr(equals + 1)), path});
  }
}

std::vector<std::string> items_of(std::string_view list) {
  std::vector<std::string> items;
  if (list.starts_with('^')) list.remove_prefix(1);
  while (!list.empty()) {
    const size_t end = list.find_first_of(",;");
    if (std::string item = trimmed(list.substr(0, end)); !item.empty()) items.push_back(std::move(item));
    list.remove_prefix(end == list.npos ? list.size() : end + 1);
  }
  return items;
}

using Names = std::vector<std::string_view>;

bool is_among(const std::string& item, const Names& names) {
  return std::ranges::any_of(names, [&item](std::string_view name) {
    return name.ends_with('*') ? item.starts_with(name.substr(0, name.size() - 1)) : item == name;
  });
}

bool names_one(const std::string& value, const Names& names) {
  if (value.starts_with('^')) return false;
  return std::ranges::any_of(items_of(value), [&names](const auto& item) { return is_among(item, names); });
}

// Lists in which one of these has messages go through a fabric's adapter.
const std::map<std::string, Names>& names_of_fabrics() {
  static const Names kProviders{"verbs", "psm*", "opx", "cxi", "efa", "gni", "usnic", "bgq"};
  static const std::map<std::string, Names> kNames{
      {"OMPI_MCA_pml", {"yalla", "mxm"}},
      {"OMPI_MCA_mtl", {"psm*", "mxm", "portals4"}},
      {"OMPI_MCA_btl", {"openib", "uct", "ofi", "usnic", "ugni", "portals4"}},
      {"OMPI_MCA_coll", {"hcoll", "fca"}},
      {"UCX_TLS", {"all", "ib", "rc*", "ud*", "dc*", "rdmacm", "ugni*", "srd"}},
      {"FI_PROVIDER", kProviders},
      {"MPIR_CVAR_OFI_USE_PROVIDER", kProviders}};
  return kNames;
}

// All but what is listed: what leaves out one way of a fabric still has messages go by its others.
bool leaves_a_fabric_in(const std::string& variable, const std::string& value) {
  if (!value.starts_with('^')) return false;
  const auto items = items_of(value);
  const auto without = [&items](std::string_view name) {
    return std::ranges::any_of(items, [name](const auto& item) { return is_among(item, {name}); });
  };
  if (variable == "UCX_TLS") return !without("ib") && !(without("rc*") && without("ud*") && without("dc*"));
  // Which of them this host's adapter needs is not known: who leaves out any of them has thought of it.
  const bool of_libfabric = variable == "FI_PROVIDER" || variable == "MPIR_CVAR_OFI_USE_PROVIDER";
  return of_libfabric && std::ranges::none_of(names_of_fabrics().at(variable), without);
}

// As names_of_fabrics() for memory of other processes, by name of the device.
Names names_of_copies(const std::string& variable, const std::vector<std::string>& adapters) {
  Names names;
  if (variable != "OMPI_MCA_smsc" && variable != "OMPI_MCA_btl_vader_single_copy_mechanism" &&
      variable != "UCX_TLS")
    return names;
  for (const std::string_view name : {"xpmem", "knem"}) {
    if (std::ranges::any_of(adapters, [name](const auto& path) { return path.ends_with(name); }))
      names.push_back(name);
  }
  return names;
}

bool is_fabric(const std::string& path) { return !path.ends_with("xpmem") && !path.ends_with("knem"); }

bool says(const MpiSettings& settings, const char* variable, const Names& names) {
  const auto it = settings.find(variable);
  return it != settings.end() && names_one(it->second.value, names);
}

// Open MPI goes by UCX or libfabric only where it is told to: without it our own settings keep it off them.
bool is_read(const MpiSettings& settings, const std::string& variable, bool open_mpi) {
  if (!open_mpi || variable.starts_with(kOpenMpi)) return true;
  if (variable.starts_with("UCX_"))
    return says(settings, "OMPI_MCA_pml", {"ucx"}) || says(settings, "OMPI_MCA_osc", {"ucx"});
  return says(settings, "OMPI_MCA_pml", {"cm"});
}

bool leads_to_fabric(const MpiSettings& settings, const std::string& variable, const std::string& value) {
  if (const auto known = names_of_fabrics().find(variable); known != names_of_fabrics().end()) {
    if (names_one(value, known->second) || leaves_a_fabric_in(variable, value)) return true;
  }
  // libfabric has a way over TCP, what else is below `cm` has none.
  if (variable == "OMPI_MCA_pml" && names_one(value, {"cm"})) return !says(settings, "OMPI_MCA_mtl", {"ofi"});
  if (variable != "UCX_NET_DEVICES") return false;
  // A device of an adapter has a port (mlx5_0:1), an interface of the network has none.
  const auto devices = items_of(value);
  return !devices.empty() &&
         std::ranges::all_of(devices, [](const auto& d) { return d.find(':') != d.npos; });
}

}  // namespace

MpiSettings mpi_settings_here() {
  MpiSettings settings;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view pair = *e;
    const size_t equals = pair.find('=');
    if (equals != pair.npos && is_of_mpi(pair.substr(0, equals)))
      settings.emplace(pair.substr(0, equals),
                       MpiSetting{std::string(pair.substr(equals + 1)), kEnvironment});
  }
  // Files whose settings win come first.
  const char* home = getenv("HOME");
  const char* prefix = getenv("OPAL_PREFIX");
  if (home != nullptr) add_file(std::string(home) + "/.openmpi/mca-params.conf", kOpenMpi, settings);
  if (prefix != nullptr) add_file(std::string(prefix) + "/etc/openmpi-mca-params.conf", kOpenMpi, settings);
  add_file("/etc/openmpi/openmpi-mca-params.conf", kOpenMpi, settings);
  add_file("ucx.conf", "", settings);
  if (const char* directory = getenv("UCX_CONFIG_DIR"); directory != nullptr)
    add_file(std::string(directory) + "/ucx.conf", "", settings);
  if (home != nullptr) add_file(std::string(home) + "/ucx.conf", "", settings);
  add_file("/etc/ucx/ucx.conf", "", settings);
  return settings;
}

MpiSettings mpi_settings_of(const std::vector<std::string>& program) {
  MpiSettings settings = mpi_settings_here();
  if (program.empty() || !is_mpi_launcher(program[0])) return settings;
  for (const auto& [name, value] : settings_on_line(program))
    settings.insert_or_assign(name, MpiSetting{value, "the command line"});
  return settings;
}

std::map<std::string, std::string> mpi_variables() {
  std::map<std::string, std::string> all;
  if (getenv("OMPI_COMM_WORLD_RANK") != nullptr || getenv("PMIX_RANK") != nullptr) return all;
  for (const auto& [name, setting] : mpi_settings_here()) {
    if (setting.where == kEnvironment) all[name] = setting.value;
  }
  return all;
}

std::string setting_for_adapters(const MpiSettings& settings, const std::vector<std::string>& adapters,
                                 bool open_mpi) {
  const bool fabric = std::ranges::any_of(adapters, is_fabric);
  for (const auto& [variable, setting] : settings) {
    if (!is_read(settings, variable, open_mpi)) continue;
    if ((fabric && leads_to_fabric(settings, variable, setting.value)) ||
        names_one(setting.value, names_of_copies(variable, adapters)))
      return fmt::format("{}={} ({})", variable, setting.value, setting.where);
  }
  return "";
}

std::string left_out_by_both(const std::string& one, const std::string& other) {
  if (!one.starts_with('^') || !other.starts_with('^')) return "";
  std::string both = one;
  const auto there = items_of(one);
  for (const std::string& item : items_of(other)) {
    if (std::ranges::find(there, item) == there.end()) both += (both.size() > 1 ? "," : "") + item;
  }
  return both;
}

}  // namespace ckpt::cli
