// nbody: particles that attract each other, by a multipole tree. Each rank has particles that are near to
// each other; in each step it builds a tree of its own and sends each other rank the part that this rank
// needs. Then it computes the forces on its own particles.
//
// Verified: at the end the acceleration of some particles of each rank is compared with the sum over all
// particles, without a tree; momentum and energy must be what they were.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "bench/diskless/multipole_tree.h"
#include "bench/diskless/ranks.h"

namespace bench {
namespace {

constexpr uint64_t kSamples = 16;    // of each rank
constexpr double kSoftening = 0.03;  // of a ball with the radius 1

struct Arguments {
  uint64_t particles = 4000, steps = 10, seed = 1;
  double theta = 0.5, step = 1e-3;
};

// Of these only position, velocity and field change.
struct Particle {
  uint64_t id;
  double mass;
  Vector position, velocity;
  Field field;
  Vector first_position, first_velocity;
};

Vector place(const Arguments& a, uint64_t id) {
  for (uint64_t attempt = 0;; ++attempt) {
    Vector v;
    double square = 0;
    for (uint64_t d = 0; d < 3; ++d) {
      v[d] = static_cast<double>(mix(mix(a.seed + attempt) + id * 3 + d) >> 11) * 0x1p-52 - 1;
      square += v[d] * v[d];
    }
    if (square > 1) continue;
    const double to_the_middle = square;  // denser there
    for (double& x : v) x *= to_the_middle;
    return v;
  }
}

// Numbers of near points are near to each other: bits of the coordinates in turns.
uint64_t along_the_curve(const Vector& v) {
  uint64_t key = 0;
  for (int bit = 20; bit >= 0; --bit) {
    for (double x : v) key = key << 1 | (static_cast<uint64_t>((x + 1) * 0x1p20) >> bit & 1);
  }
  return key;
}

std::vector<Particle> make(const Arguments& a, const Ranks& ranks) {
  std::vector<std::pair<uint64_t, uint64_t>> all(a.particles);
  for (uint64_t id = 0; id < a.particles; ++id) all[id] = {along_the_curve(place(a, id)), id};
  std::sort(all.begin(), all.end());
  const Share mine = ranks.mine(a.particles);
  std::vector<Particle> result;
  for (uint64_t i = mine.first; i < mine.last; ++i) {
    const uint64_t id = all[i].second;
    const Vector p = place(a, id);
    // Round the axis, more slowly than would balance.
    const Vector v = {-0.6 * p[1], 0.6 * p[0], 0};
    result.push_back({id, 1.0 / static_cast<double>(a.particles), p, v, {}, p, v});
  }
  return result;
}

class Simulation {
 public:
  Simulation(const Arguments& a, const Ranks& ranks) : a_(a), ranks_(ranks), particles_(make(a, ranks)) {
    compute();
  }

  void step() {
    for (Particle& p : particles_) {
      for (int d = 0; d < 3; ++d) {
        p.velocity[d] += p.field.acceleration[d] * a_.step / 2;
        p.position[d] += p.velocity[d] * a_.step;
      }
    }
    compute();
    for (Particle& p : particles_) {
      for (int d = 0; d < 3; ++d) p.velocity[d] += p.field.acceleration[d] * a_.step / 2;
    }
  }

  double energy() const {
    double sum = 0;
    for (const Particle& p : particles_) {
      const Vector& v = p.velocity;
      sum += p.mass * (v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + p.field.potential + p.mass / kSoftening) / 2;
    }
    return ranks_.sum(sum);
  }
  // Its length: 0 but for what the tree leaves out.
  double momentum() const {
    double square = 0;
    for (int d = 0; d < 3; ++d) {
      double change = 0;
      for (const Particle& p : particles_) change += p.mass * (p.velocity[d] - p.first_velocity[d]);
      change = ranks_.sum(change);
      square += change * change;
    }
    return std::sqrt(square);
  }
  double moved() const {
    double sum = 0;
    for (const Particle& p : particles_) {
      for (int d = 0; d < 3; ++d) sum += std::pow(p.position[d] - p.first_position[d], 2);
    }
    return std::sqrt(ranks_.sum(sum) / static_cast<double>(a_.particles));
  }
  uint64_t digest() const {
    uint64_t sum = 0;
    for (const Particle& p : particles_) {
      uint64_t bits[6], value = p.id;
      std::memcpy(bits, p.position.data(), 24);
      std::memcpy(bits + 3, p.velocity.data(), 24);
      for (uint64_t b : bits) value = mix(value ^ b);
      sum += value;
    }
    return ranks_.sum(sum);
  }

  // How far the accelerations of the samples are from those that the sum over all particles gives, beside
  // their own size.
  double deviation() const {
    const uint64_t n = std::min<uint64_t>(kSamples, a_.particles / static_cast<uint64_t>(ranks_.size()));
    const auto all = n * static_cast<uint64_t>(ranks_.size());
    std::vector<Vector> own(n), points(all);
    for (uint64_t i = 0; i < n; ++i) own[i] = sample(i, n).position;
    MPI_Allgather(own.data(), static_cast<int>(3 * n), MPI_DOUBLE, points.data(), static_cast<int>(3 * n),
                  MPI_DOUBLE, MPI_COMM_WORLD);
    double wrong = 0, right = 0;
    for (uint64_t i = 0; i < all; ++i) {
      Field part;
      for (const Particle& p : particles_)
        part.add({p.position, p.mass, {}, 0}, points[i], kSoftening * kSoftening);
      for (int d = 0; d < 3; ++d) {
        const double direct = ranks_.sum(part.acceleration[d]);
        if (i / n != static_cast<uint64_t>(ranks_.rank())) continue;
        wrong += std::pow(sample(i % n, n).field.acceleration[d] - direct, 2);
        right += direct * direct;
      }
    }
    return std::sqrt(ranks_.sum(wrong) / ranks_.sum(right));
  }

 private:
  const Particle& sample(uint64_t i, uint64_t n) const { return particles_[i * particles_.size() / n]; }

  void compute() {
    std::vector<Source> sources;
    Box box{particles_[0].position, particles_[0].position};
    for (const Particle& p : particles_) {
      sources.push_back({p.position, p.mass, {}, 0});
      box.include(p.position);
    }
    const size_t own = sources.size(), size = static_cast<size_t>(ranks_.size());
    std::vector<Box> boxes(size);
    MPI_Allgather(&box, 6, MPI_DOUBLE, boxes.data(), 6, MPI_DOUBLE, MPI_COMM_WORLD);
    std::vector<Source> out;
    std::vector<int> sent(size), received(size), sent_at(size), received_at(size);
    {
      const MultipoleTree tree(sources);
      for (size_t r = 0; r < size; ++r) {
        sent_at[r] = static_cast<int>(out.size()) * kDoublesOfSource;
        if (r != static_cast<size_t>(ranks_.rank())) tree.essential(boxes[r], a_.theta, out);
        sent[r] = static_cast<int>(out.size()) * kDoublesOfSource - sent_at[r];
      }
    }
    MPI_Alltoall(sent.data(), 1, MPI_INT, received.data(), 1, MPI_INT, MPI_COMM_WORLD);
    int total = 0;
    for (size_t r = 0; r < size; ++r) {
      received_at[r] = total;
      total += received[r];
    }
    sources.resize(own + static_cast<size_t>(total / kDoublesOfSource));
    MPI_Alltoallv(out.data(), sent.data(), sent_at.data(), MPI_DOUBLE, &sources[own], received.data(),
                  received_at.data(), MPI_DOUBLE, MPI_COMM_WORLD);
    const MultipoleTree tree(std::move(sources));
    for (Particle& p : particles_) p.field = tree.at(p.position, a_.theta, kSoftening * kSoftening);
  }

  const Arguments& a_;
  const Ranks& ranks_;
  std::vector<Particle> particles_;
};

bool run(const Arguments& a, const Ranks& ranks) {
  if (a.particles < static_cast<uint64_t>(ranks.size()))
    throw std::invalid_argument("--particles must be the number of ranks at least");
  Simulation simulation(a, ranks);
  const double energy = simulation.energy();
  ranks.say("{} particles", a.particles);
  for (uint64_t s = 0; s < a.steps; ++s) {
    simulation.step();
    if ((s + 1) * 10 / a.steps != s * 10 / a.steps) ranks.say("step {}", s + 1);
  }
  const double deviation = simulation.deviation(), change = std::abs(simulation.energy() / energy - 1);
  const double momentum = simulation.momentum();
  ranks.say("moved {:.9f} digest {:016x}", simulation.moved(), simulation.digest());
  return deviation < 0.03 * std::pow(a.theta, 3) && change < 0.01 && momentum < 0.001;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  bench::Arguments a;
  bench::RankProgram program;
  program.name = "nbody";
  program.description =
      "Particles that attract each other, by a multipole tree: some 350 bytes a particle over all ranks. "
      "Accelerations are compared "
      "with sums over all particles.";
  program.configure = [&a](bench::CommandLine& line) {
    line.number("--particles", a.particles, "How many", 1u, 1u << 26);
    line.number("--steps", a.steps, "Steps of time", 1u, 1u << 30);
    line.number("--step", a.step, "The length of one; a particle needs some 5 to fall to the middle", 1e-6,
                1e-2);
    line.number("--theta", a.theta,
                "A group is taken for one where its radius is less than so many distances", 0.05, 0.8);
    line.number("--seed", a.seed, "Start of the pseudo-random places");
  };
  program.run = [&a](const bench::Ranks& ranks) { return run(a, ranks); };
  return run_ranks(program, argc, argv);
}
