#include "ops/testing/cache_tools.h"

#include <algorithm>

namespace dsv4::optest {
namespace {

// Sequences with rows in the range; the whole batch also keeps those that have none.
std::vector<size_t> sequences_in(const StepRows& s, RowRange range) {
  std::vector<size_t> out;
  const bool whole = range.begin == 0 && range.end == s.starts.back();
  for (size_t i = 0; i < s.seqs.size(); ++i) {
    if (whole || (s.starts[i] < range.end && s.starts[i + 1] > range.begin)) out.push_back(i);
  }
  return out;
}

Bytes bytes_of(const std::vector<int32_t>& v) {
  Bytes out(v.size() * 4);
  if (!v.empty()) std::memcpy(out.data(), v.data(), out.size());
  return out;
}

}  // namespace

SequenceRows StepRows::bind(const Bound& b) const {
  return {b.pointer<int32_t>(positions_t),
          b.pointer<int32_t>(slots_t),
          b.pointer<int32_t>(cu_rows_t),
          b.pointer<int32_t>(seq_slots_t),
          b.range.size(),
          static_cast<int64_t>(sequences_in(*this, b.range).size())};
}

int32_t StepRows::num_slots() const {
  int32_t n = 1;
  for (const SeqSpec& s : seqs) n = std::max(n, s.slot + 1);
  return n;
}

StepRows add_step(Problem& p, const std::vector<SeqSpec>& seqs) {
  StepRows s;
  s.seqs = seqs;
  for (const SeqSpec& seq : seqs) {
    s.starts.push_back(static_cast<int64_t>(s.positions.size()));
    for (int32_t i = 0; i < seq.rows + seq.padding; ++i) {
      const bool padding = seq.slot < 0 || i >= seq.rows;
      s.positions.push_back(padding ? -1 : seq.first + i);
      s.slots.push_back(padding ? static_cast<int32_t>(kPoisonWord) : seq.slot);
    }
  }
  s.starts.push_back(static_cast<int64_t>(s.positions.size()));
  p.num_rows = s.starts.back();
  p.ordered = true;
  s.positions_t = p.add_rows("positions", 1, 0, s.positions);
  s.slots_t = p.add_rows("slots", 1, 0, s.slots);
  s.cu_rows_t = p.add_poisoned("cu_rows", Elem::kI32, Role::kInput, false, 1, 1, 0);
  p.tensors.back().derive = [s](RowRange range) {
    std::vector<int32_t> cu = {0};
    for (const size_t i : sequences_in(s, range)) cu.push_back(static_cast<int32_t>(std::min(s.starts[i + 1], range.end) - range.begin));
    return bytes_of(cu);
  };
  s.seq_slots_t = p.add_poisoned("seq_slots", Elem::kI32, Role::kInput, false, 1, 1, 0);
  p.tensors.back().derive = [s](RowRange range) {
    std::vector<int32_t> slots;
    for (const size_t i : sequences_in(s, range)) slots.push_back(s.seqs[i].slot < 0 ? static_cast<int32_t>(kPoisonWord) : s.seqs[i].slot);
    return bytes_of(slots);
  };
  return s;
}

PagedRows Cache::bind(const Bound& b) const {
  PagedRows r = rows;
  r.base = b.pointer<uint8_t>(tensor) + spec.base_offset;
  return r;
}

Unit Cache::unit(int32_t slot, int64_t row) const {
  const int64_t at = block(slot, row), offset = row % spec.block_rows, data = spec.base_offset + row_data_offset(rows, at, offset);
  if (spec.format == RowFormat::kF32) return {tensor, Elem::kF32, {{data, data + 4 * int64_t{spec.row_dim}}}, true};
  const int64_t scale = spec.base_offset + row_scale_offset(rows, at, offset);
  const bool mla = spec.format == RowFormat::kFp8DsMla;
  return {tensor, Elem::kU8, {{data, data + (mla ? 576 : spec.row_dim / 2)}, {scale, scale + (mla ? 8 : spec.row_dim / 32)}}, true};
}

void Cache::write(Problem& p, int32_t slot, int64_t row, const float* values) const {
  PagedRows r = rows;
  r.base = p.tensors[static_cast<size_t>(tensor)].image.data() + spec.base_offset;
  write_row(r, block(slot, row), row % spec.block_rows, values);
}

std::vector<float> Cache::read(const Images& images, int32_t slot, int64_t row) const {
  const uint8_t* start = images[static_cast<size_t>(tensor)].data() + spec.base_offset + block(slot, row) * rows.block_stride_bytes;
  const int64_t t = row % spec.block_rows, n = spec.row_dim;
  std::vector<float> out(static_cast<size_t>(n));
  if (spec.format == RowFormat::kF32) {
    std::memcpy(out.data(), start + t * n * 4, static_cast<size_t>(4 * n));
    return out;
  }
  if (spec.format == RowFormat::kFp8DsMla) {
    const uint8_t* data = start + t * 576;
    const uint8_t* scale = start + spec.block_rows * 576 + t * 8;
    for (int64_t i = 0; i < 448; ++i) out[static_cast<size_t>(i)] = static_cast<float>(e4m3_value(data[i]) * e8m0_value(scale[i / 64]));
    for (int64_t i = 0; i < 64; ++i) {
      out[static_cast<size_t>(448 + i)] = static_cast<float>(bf16_value(static_cast<uint16_t>(data[448 + 2 * i] | data[449 + 2 * i] << 8)));
    }
    return out;
  }
  const uint8_t* data = start + t * n / 2;
  const uint8_t* scale = start + spec.block_rows * n / 2 + t * n / 32;
  for (int64_t i = 0; i < n; ++i) out[static_cast<size_t>(i)] = static_cast<float>(e2m1_value(data[i / 2] >> (4 * (i % 2)) & 15) * e8m0_value(scale[i / 32]));
  return out;
}

void Cache::judge_pad(const Images& images, int32_t slot, int64_t row, Verdict& verdict) const {
  if (spec.format != RowFormat::kFp8DsMla) return;
  const uint8_t pad = images[static_cast<size_t>(tensor)][static_cast<size_t>(unit(slot, row).spans[1].end - 1)];
  if (pad != 0) verdict.refuse([&] { return "the pad byte of slot " + std::to_string(slot) + " row " + std::to_string(row) + " is " + std::to_string(pad); });
}

Cache add_cache(Problem& p, const std::string& name, Role role, const CacheSpec& spec, const std::vector<int64_t>& rows_per_slot, int64_t spare) {
  Cache c;
  c.spec = spec;
  const int64_t least = block_bytes(spec.format, spec.block_rows, spec.row_dim), stride = least + spec.extra_stride;
  c.rows = {spec.format, nullptr, stride, spec.block_rows, spec.row_dim};
  int64_t blocks = 0, longest = 0;
  for (const int64_t rows : rows_per_slot) {
    const int64_t need = (rows + spec.block_rows - 1) / spec.block_rows;
    blocks += need;
    longest = std::max(longest, need);
  }
  c.entries = std::max<int64_t>(1, longest + spare);
  const int64_t total = blocks + 2;  // two that nobody owns
  const std::vector<int32_t> shuffled = p.rng.permutation(total);
  c.ids.assign(rows_per_slot.size() * static_cast<size_t>(c.entries), static_cast<int32_t>(kPoisonWord));
  size_t next = 0;
  for (size_t slot = 0; slot < rows_per_slot.size(); ++slot) {
    for (int64_t i = 0; i * spec.block_rows < rows_per_slot[slot]; ++i)
      c.ids[slot * static_cast<size_t>(c.entries) + static_cast<size_t>(i)] = shuffled[next++];
  }
  c.tensor = p.add_poisoned(name, Elem::kU8, role, false, 1, spec.base_offset + (total - 1) * stride + least, 0);
  c.table_tensor = p.add_vector(name + " block table", c.ids);
  return c;
}

RowRounding row_rounding(RowFormat format, CacheRounding rounding, int64_t row_dim, int64_t rope_dim, bool indexer) {
  RowRounding r;
  if (format == RowFormat::kMxfp4 || (indexer && rounding == CacheRounding::kE4M3)) return {RowRounding::Grid::kE2M1, row_dim, 32, false};
  if (rounding == CacheRounding::kE4M3 || format == RowFormat::kFp8DsMla)
    r = {RowRounding::Grid::kE4M3, row_dim - rope_dim, 64, format == RowFormat::kFp8DsMla};
  return r;
}

void judge_cache_row(const Cache& cache, int32_t slot, int64_t row, const RowTruth& truth, const RowRounding& rounding, const Images& actual,
                     const Images* reference, Verdict& verdict) {
  const std::vector<float> got = cache.read(actual, slot, row);
  judge_rounded_row("slot " + std::to_string(slot) + " row " + std::to_string(row), truth, rounding, got.data(), verdict);
  cache.judge_pad(actual, slot, row, verdict);
  if (reference == nullptr || rounding.grid == RowRounding::Grid::kNone) return;
  const std::vector<float> theirs = cache.read(*reference, slot, row);
  for (int64_t i = 0; i < rounding.rounded; ++i) verdict.flips += got[static_cast<size_t>(i)] != theirs[static_cast<size_t>(i)];
}

}  // namespace dsv4::optest
