#include "weights.h"

namespace headrace {
namespace {

float widen(uint16_t half) {
  uint16_t halves[kLanes] = {half};
  float lanes[kLanes];
  Floats::load(halves).store(lanes);
  return lanes[0];
}

// Where input k of a lane lies in its block, in bytes; nibbles: of the byte that holds it.
int place_of(Format format, int lane, int k) {
  const int group = format == kBytes ? k / 4 : k / 4 % 4;
  return 64 * group + 4 * lane + k % 4;
}

}  // namespace

Weights::Weights(const PlainWeights& plain)
    : format_(plain.format), rows_(plain.rows), num_blocks_(plain.columns / kBlock) {
  const int num_groups = (num_blocks_ + blocks_a_group(format_) - 1) / blocks_a_group(format_);
  panel_bytes_ = num_groups * group_bytes(format_);
  memory_ = Memory(panel_bytes_ * num_panels());
  for (int panel = 0; panel < num_panels(); ++panel)
    for (int block = 0; block < num_blocks_; ++block) pack_block(plain, panel, block);
}

Weights::Place Weights::place(int block) const {
  const size_t group = block / blocks_a_group(format_), within = block % blocks_a_group(format_);
  const size_t start = group * group_bytes(format_);
  return {start + within * kLanes * sizeof(uint16_t), start + kCacheLine + within * value_bytes(format_)};
}

void Weights::pack_block(const PlainWeights& plain, int index, int block) {
  uint8_t* const to = memory_.as<uint8_t>() + index * panel_bytes_;
  uint16_t* const scales = reinterpret_cast<uint16_t*>(to + place(block).scales);
  uint8_t* const values = to + place(block).values;
  for (int lane = 0; lane < kLanes && index * kLanes + lane < rows_; ++lane) {
    const size_t row = static_cast<size_t>(index) * kLanes + lane, number = row * num_blocks_ + block;
    scales[lane] = plain.scales[number];
    if (format_ == kNibblesMin) scales[kLanes + lane] = plain.minimums[number];
    const uint8_t* from = plain.values + number * kBlock;
    for (int k = 0; k < kBlock; ++k) {
      uint8_t& byte = values[place_of(format_, lane, k)];
      if (format_ == kBytes) {
        byte = static_cast<uint8_t>(from[k] + kByteOffset);
      } else {
        byte |= static_cast<uint8_t>((from[k] & 15) << (k < kBlock / 2 ? 0 : 4));
      }
    }
  }
}

void Weights::read_row(int row, float* to) const {
  const uint8_t* const from = panel(row / kLanes);
  const int lane = row % kLanes;
  for (int block = 0; block < num_blocks_; ++block, to += kBlock) {
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(from + place(block).scales);
    const uint8_t* values = from + place(block).values;
    const float scale = widen(scales[lane]);
    const float minimum = format_ == kNibblesMin ? widen(scales[kLanes + lane]) : 0.0f;
    for (int k = 0; k < kBlock; ++k) {
      const uint8_t byte = values[place_of(format_, lane, k)];
      int q;
      if (format_ == kBytes) {
        q = static_cast<int8_t>(byte - kByteOffset);
      } else {
        q = (k < kBlock / 2 ? byte & 15 : byte >> 4) - (format_ == kNibbles ? 8 : 0);
      }
      to[k] = scale * static_cast<float>(q) + minimum;
    }
  }
}

}  // namespace headrace
