#include "bench/diskless/multipole_tree.h"

#include <algorithm>
#include <cmath>

namespace bench {
namespace {

constexpr int kDeepest = 40;  // as many sources at one point as there may be

Vector between(const Vector& from, const Vector& to) {
  return {to[0] - from[0], to[1] - from[1], to[2] - from[2]};
}
double squared(const Vector& v) { return v[0] * v[0] + v[1] * v[1] + v[2] * v[2]; }

int octant_of(const Vector& point, const Vector& middle) {
  return (point[0] >= middle[0]) | (point[1] >= middle[1]) << 1 | (point[2] >= middle[2]) << 2;
}

}  // namespace

void Field::add(const Source& source, const Vector& point, double softening) {
  const Vector x = between(source.centre, point);
  const double distance = squared(x) + softening, inverse = 1 / distance, over_r = std::sqrt(inverse);
  const double over_r3 = over_r * inverse;
  potential -= source.mass * over_r;
  double along = -source.mass * over_r3;
  if (source.radius > 0) {
    // The second term of the series of m / sqrt(x^2 + softening) about the centre.
    const auto& s = source.moments;
    const Vector sx = {s[0] * x[0] + s[3] * x[1] + s[4] * x[2], s[3] * x[0] + s[1] * x[1] + s[5] * x[2],
                       s[4] * x[0] + s[5] * x[1] + s[2] * x[2]};
    const double over_r5 = over_r3 * inverse, xsx = x[0] * sx[0] + x[1] * sx[1] + x[2] * sx[2];
    const double trace = s[0] + s[1] + s[2];
    potential -= (3 * xsx * over_r5 - trace * over_r3) / 2;
    along += (trace - 5 * xsx * inverse) * over_r5 * 1.5;
    for (int d = 0; d < 3; ++d) acceleration[d] += 3 * sx[d] * over_r5;
  }
  for (int d = 0; d < 3; ++d) acceleration[d] += along * x[d];
}

void Box::include(const Vector& point) {
  for (int d = 0; d < 3; ++d) {
    low[d] = std::min(low[d], point[d]);
    high[d] = std::max(high[d], point[d]);
  }
}

double Box::squared_distance(const Vector& point) const {
  Vector away;
  for (int d = 0; d < 3; ++d) away[d] = std::max({low[d] - point[d], 0.0, point[d] - high[d]});
  return squared(away);
}

MultipoleTree::MultipoleTree(std::vector<Source> sources) : sources_(std::move(sources)) {
  if (sources_.empty()) return;
  Box box{sources_[0].centre, sources_[0].centre};
  for (const Source& s : sources_) box.include(s.centre);
  Vector middle;
  double half = 0;
  for (int d = 0; d < 3; ++d) {
    middle[d] = (box.low[d] + box.high[d]) / 2;
    half = std::max(half, (box.high[d] - box.low[d]) / 2);
  }
  nodes_.push_back({{}, 0, static_cast<uint32_t>(sources_.size()), 0, 0});
  build(0, middle, half, 0);
}

Source MultipoleTree::sum_of(const Source* first, const Source* last) {
  if (last - first == 1) return *first;
  Source sum{};
  for (const Source* s = first; s != last; ++s) {
    sum.mass += s->mass;
    for (int d = 0; d < 3; ++d) sum.centre[d] += s->mass * s->centre[d];
  }
  for (double& c : sum.centre) c /= sum.mass;
  for (const Source* s = first; s != last; ++s) {
    const Vector d = between(sum.centre, s->centre);
    const double products[6] = {d[0] * d[0], d[1] * d[1], d[2] * d[2], d[0] * d[1], d[0] * d[2], d[1] * d[2]};
    for (int k = 0; k < 6; ++k) sum.moments[k] += s->moments[k] + s->mass * products[k];
    sum.radius = std::max(sum.radius, std::sqrt(squared(d)) + s->radius);
  }
  return sum;
}

void MultipoleTree::build(uint32_t index, const Vector& middle, double half, int depth) {
  const uint32_t first = nodes_[index].first, last = nodes_[index].last;
  if (last - first <= kLeaf || depth == kDeepest) {
    nodes_[index].sum = sum_of(&sources_[first], &sources_[last - 1] + 1);
    return;
  }
  uint32_t bounds[9] = {first};
  for (int octant = 0; octant < 8; ++octant) {
    const auto begin = sources_.begin() + bounds[octant], end = sources_.begin() + last;
    const auto rest = std::stable_partition(
        begin, end, [&](const Source& s) { return octant_of(s.centre, middle) == octant; });
    bounds[octant + 1] = static_cast<uint32_t>(rest - sources_.begin());
  }
  const auto child = static_cast<uint32_t>(nodes_.size());
  std::array<int, 8> octants{};
  uint32_t children = 0;
  for (int octant = 0; octant < 8; ++octant) {
    if (bounds[octant] == bounds[octant + 1]) continue;
    nodes_.push_back({{}, bounds[octant], bounds[octant + 1], 0, 0});
    octants[children++] = octant;
  }
  nodes_[index].child = child;
  nodes_[index].children = children;
  std::vector<Source> sums;
  for (uint32_t c = 0; c < children; ++c) {
    Vector inner = middle;
    for (int d = 0; d < 3; ++d) inner[d] += (octants[c] >> d & 1) != 0 ? half / 2 : -half / 2;
    build(child + c, inner, half / 2, depth + 1);
    sums.push_back(nodes_[child + c].sum);
  }
  nodes_[index].sum = sum_of(sums.data(), sums.data() + sums.size());
}

Field MultipoleTree::at(const Vector& point, double theta, double softening) const {
  Field field;
  std::array<uint32_t, 8 * (kDeepest + 1)> left;
  size_t n = 0;
  if (!nodes_.empty()) left[n++] = 0;
  while (n > 0) {
    const Node& node = nodes_[left[--n]];
    const double distance = squared(between(node.sum.centre, point));
    if (node.sum.radius * node.sum.radius < theta * theta * distance) {
      field.add(node.sum, point, softening);
    } else if (node.children == 0) {
      for (uint32_t s = node.first; s < node.last; ++s) field.add(sources_[s], point, softening);
    } else {
      for (uint32_t c = node.children; c-- > 0;) left[n++] = node.child + c;
    }
  }
  return field;
}

void MultipoleTree::essential(const Box& box, double theta, std::vector<Source>& out) const {
  std::vector<uint32_t> left;
  if (!nodes_.empty()) left.push_back(0);
  while (!left.empty()) {
    const Node& node = nodes_[left.back()];
    left.pop_back();
    if (node.sum.radius * node.sum.radius < theta * theta * box.squared_distance(node.sum.centre)) {
      out.push_back(node.sum);
    } else if (node.children == 0) {
      out.insert(out.end(), sources_.begin() + node.first, sources_.begin() + node.last);
    } else {
      for (uint32_t c = node.children; c-- > 0;) left.push_back(node.child + c);
    }
  }
}

}  // namespace bench
