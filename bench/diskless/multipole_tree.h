// An octree of sources, each node with the multipole of what is in it: mass, centre of mass, second moments.
//
// Owner:     nbody. A source is a particle, or a distant group of them that another rank has summed up: so a
//            rank's own particles and what the others sent it are one tree.
// Callers:   nbody, one thread.
// Never:     a node is taken for its particles where its radius is more than theta times its distance.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace bench {

using Vector = std::array<double, 3>;

struct Source {
  Vector centre;
  double mass;
  std::array<double, 6> moments;  // second ones, about the centre: xx yy zz xy xz yz
  double radius;                  // from the centre to the farthest particle at most
};
inline constexpr int kDoublesOfSource = 11;
static_assert(sizeof(Source) == kDoublesOfSource * sizeof(double));

struct Field {
  Vector acceleration{};
  double potential = 0;

  // What a source does at a point. softening: squared, added to each squared distance.
  void add(const Source& source, const Vector& point, double softening);
};

struct Box {
  Vector low, high;
  void include(const Vector& point);
  double squared_distance(const Vector& point) const;
};

class MultipoleTree {
 public:
  explicit MultipoleTree(std::vector<Source> sources);

  // At one point, which may be a source itself: that one adds a potential only.
  Field at(const Vector& point, double theta, double softening) const;

  // What a rank whose particles are in that box needs of this tree: added to `out`.
  void essential(const Box& box, double theta, std::vector<Source>& out) const;

 private:
  static constexpr uint32_t kLeaf = 16;
  struct Node {
    Source sum;
    uint32_t first, last;      // its sources
    uint32_t child, children;  // nodes; no children: a leaf
  };

  void build(uint32_t index, const Vector& middle, double half, int depth);
  static Source sum_of(const Source* first, const Source* last);

  std::vector<Source> sources_;
  std::vector<Node> nodes_;
};

}  // namespace bench
