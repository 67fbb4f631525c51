// The machine that is measured, in words for the page; and what it allows.
//
// Owner: bench/latency.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bench/latency/child.h"

namespace latency {

// ("cpu", "…"), ("memory", "…"), …
std::vector<std::pair<std::string, std::string>> describe_machine(const std::string& images);

uint64_t available_memory();                       // bytes
uint64_t free_disk(const std::string& directory);  // bytes

struct Method {
  std::string name;
  std::string why_not;  // empty: it works here
};
// Every mode that the library's settings know, tried out.
std::vector<Method> try_modes(const Places& places);
Method try_criu(const Places& places);

}  // namespace latency
