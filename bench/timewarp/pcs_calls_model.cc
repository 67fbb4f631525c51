#include "bench/timewarp/pcs_calls_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace timewarp_bench {

namespace {

constexpr uint32_t kChannels = 50;
constexpr double kWantedRatio = 4, kNoise = 1e-3, kMostPower = 10;

struct Channel {
  double began, ends;
  double distance, power;  // of the portable from the station, and of its transmission
  uint32_t portable;       // class 0 or 1
  uint32_t busy;
};

struct Cell {
  Channel channels[kChannels];
  uint64_t busy, arrivals, blocked, ended, handed_out, handed_in, dropped;
  double power_sum;
};
static_assert(sizeof(Cell) == 2064);  // "about 2 Kbytes"

enum Kind : uint32_t { kArrival, kEnd, kHandOut, kHandIn };

struct Message {
  double ends;  // of the call
  Kind kind;
  uint16_t channel, portable;
};

const PcsCallsParameters& parameters_of(const ckpt_tw_lp* lp) {
  return *static_cast<const PcsCallsParameters*>(ckpt_tw_context(lp));
}

uint32_t columns_of(const PcsCallsParameters& p) {
  return p.columns != 0 ? p.columns : std::max(1u, static_cast<uint32_t>(std::lround(std::sqrt(p.cells))));
}

// Hexagons in rows, each second row half a cell to the right. Portables do not leave the area.
uint32_t neighbour(ckpt_tw_lp* lp, const PcsCallsParameters& p) {
  const auto columns = static_cast<int64_t>(columns_of(p));
  const int64_t x = lp->id % columns, y = lp->id / columns, odd = y & 1;
  const int64_t around[6][2] = {{x - 1, y},       {x + 1, y},           {x - 1 + odd, y - 1},
                                {x + odd, y - 1}, {x - 1 + odd, y + 1}, {x + odd, y + 1}};
  uint32_t there[6], n = 0;
  for (const auto& [nx, ny] : around) {
    if (nx >= 0 && nx < columns && ny >= 0 && ny * columns + nx < p.cells) {
      there[n++] = static_cast<uint32_t>(ny * columns + nx);
    }
  }
  return n == 0 ? lp->id : there[ckpt_tw_below(lp, n)];
}

// The least power at which the signal is kWantedRatio times noise and interference of the busy channels
// (Kandukuri and Boyd 2002: path loss with the fourth power of the distance). Its cost grows with the number
// of busy channels.
double power_for(const Cell& cell, double distance, uint32_t grain) {
  double interference = kNoise;
  for (uint32_t round = 0; round < grain; ++round) {
    interference = kNoise;
    for (const Channel& channel : cell.channels) {
      if (channel.busy != 0) interference += channel.power * std::pow(channel.distance, -4) * 1e-3;
    }
  }
  return std::min(kMostPower, kWantedRatio * interference * std::pow(distance, 4));
}

void arrive_later(ckpt_tw_lp* lp, const PcsCallsParameters& p) {
  const Message message{0, kArrival, 0, 0};
  ckpt_tw_send(lp, lp->id, ckpt_tw_exponential(lp, p.call_interval), &message, sizeof(message));
}

// False: no channel is free.
bool connect(ckpt_tw_lp* lp, const PcsCallsParameters& p, Cell& cell, double ends, uint16_t portable) {
  if (cell.busy == kChannels) return false;
  uint16_t n = 0;
  while (cell.channels[n].busy != 0) ++n;
  Channel& channel = cell.channels[n];
  const double distance = 0.1 + 0.9 * ckpt_tw_uniform(lp);
  const double power = power_for(cell, distance, p.grain);
  ckpt_tw_save(lp, &channel, sizeof(channel));
  channel = {lp->now, ends, distance, power, portable, 1};
  ++cell.busy;
  cell.power_sum += power;
  const double stays = ckpt_tw_exponential(lp, p.residence[portable]);
  const bool moves = lp->now + stays < ends;
  const Message message{ends, moves ? kHandOut : kEnd, n, portable};
  ckpt_tw_send(lp, lp->id, moves ? stays : ends - lp->now, &message, sizeof(message));
  return true;
}

void disconnect(ckpt_tw_lp* lp, Cell& cell, uint16_t n) {
  ckpt_tw_save(lp, &cell.channels[n], sizeof(Channel));
  cell.channels[n].busy = 0;
  --cell.busy;
}

void init(ckpt_tw_lp* lp, void*) { arrive_later(lp, parameters_of(lp)); }

void event(ckpt_tw_lp* lp, void* state, const void* bytes, size_t) {
  const PcsCallsParameters& p = parameters_of(lp);
  auto& cell = *static_cast<Cell*>(state);
  Message message;
  std::memcpy(&message, bytes, sizeof(message));
  ckpt_tw_save(lp, &cell.busy, sizeof(cell) - offsetof(Cell, busy));
  switch (message.kind) {
    case kArrival: {
      ++cell.arrivals;
      const auto portable = static_cast<uint16_t>(ckpt_tw_below(lp, 2));
      if (!connect(lp, p, cell, lp->now + ckpt_tw_exponential(lp, p.holding), portable)) ++cell.blocked;
      arrive_later(lp, p);
      break;
    }
    case kEnd:
      ++cell.ended;
      disconnect(lp, cell, message.channel);
      break;
    case kHandOut: {
      ++cell.handed_out;
      disconnect(lp, cell, message.channel);
      const Message in{message.ends, kHandIn, 0, message.portable};
      ckpt_tw_send(lp, neighbour(lp, p), p.handoff, &in, sizeof(in));
      break;
    }
    case kHandIn:
      ++cell.handed_in;
      if (message.ends > lp->now && !connect(lp, p, cell, message.ends, message.portable)) ++cell.dropped;
      break;
  }
}

}  // namespace

ckpt_tw_model pcs_calls_model(const PcsCallsParameters& parameters) {
  ckpt_tw_model model{};
  model.lps = parameters.cells;
  model.state_bytes = sizeof(Cell);
  model.message_bytes = sizeof(Message);
  model.init = init;
  model.event = event;
  model.context = const_cast<PcsCallsParameters*>(&parameters);
  return model;
}

}  // namespace timewarp_bench
