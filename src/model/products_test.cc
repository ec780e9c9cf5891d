// The table against the weights a checkpoint really has: names, sizes and formats.
#include "model/products.h"

#include <gtest/gtest.h>

#include <set>

#include "checkpoint/checkpoint.h"

namespace dsv4 {
namespace {

// "compressor.wkv, .wgate (ratio 4)" -> compressor.wkv, compressor.wgate
std::vector<std::string> names_of(const ModelProduct& p) {
  const std::string text = p.weight.substr(0, p.weight.find(" ("));
  const size_t comma = text.find(", .");
  if (comma == std::string::npos) return {text};
  const std::string first = text.substr(0, comma);
  return {first, first.substr(0, first.rfind('.') + 1) + text.substr(comma + 3)};
}

TEST(ModelProducts, are_the_checkpoints_matrices) {
  const auto checkpoint = Checkpoint::open("synthetic:k160", {.headers_only = true});
  ASSERT_TRUE(checkpoint.ok());
  const ModelConfig& c = checkpoint->config();
  std::set<std::string> seen;
  for (const ModelProduct& p : model_products(c)) {
    int64_t layers = 0;
    for (int64_t layer = 0; layer < c.num_layers; ++layer) {
      const int32_t ratio = c.compress_ratios[static_cast<size_t>(layer)];
      if (p.layers == 0 || (p.weight.find("(ratio 4)") != std::string::npos && ratio != 4) ||
          (p.weight.find("(ratio 128)") != std::string::npos && ratio != 128))
        continue;
      bool present = true;
      for (const std::string& name : names_of(p)) {
        for (int64_t expert = 0; expert < std::max<int64_t>(1, p.experts); ++expert) {
          const bool ffn = name == "gate" || name.find("expert") != std::string::npos;
          std::string full = "layers." + std::to_string(layer) + (ffn ? ".ffn." : ".attn.") + name;
          if (p.experts > 0) full.insert(full.rfind('.'), "." + std::to_string(expert));
          const auto w = checkpoint->weight(full);
          if (!w.ok()) {
            present = false;
            continue;
          }
          seen.insert(full);
          EXPECT_EQ(w->n, p.n) << full;
          EXPECT_EQ(w->k, p.k) << full;
          EXPECT_EQ(w->format, p.format) << full;
        }
      }
      layers += present;
    }
    EXPECT_EQ(layers, p.layers) << p.call << " " << p.weight;
  }
  // Nothing that is multiplied with is missing from the table.
  for (const TensorEntry& t : checkpoint->tensors()) {
    if (t.name.substr(0, 7) != "layers." || t.shape.size() != 2 || t.name.find("hc_") != std::string::npos || t.name.find(".ape") != std::string::npos ||
        t.name.find("tid2eid") != std::string::npos || t.name.find(".scale") != std::string::npos) {
      continue;
    }
    EXPECT_EQ(seen.count(t.name.substr(0, t.name.rfind(".weight"))), 1u) << t.name;
  }
}

}  // namespace
}  // namespace dsv4
