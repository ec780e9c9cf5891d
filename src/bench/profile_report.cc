// A profile as a table, JSON, and a flame-style picture.
#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "bench/profile.h"
#include "verify/svg_plot.h"

namespace dsv4 {

std::string to_text(const ProfileReport& r) {
  std::string out =
      fmt::format("one decode step after {} tokens, {} steps; {} on {}\n", r.context_tokens, r.steps, r.manifest.model, *r.manifest.find("device"));
  out += fmt::format(
      "headline (without profiler)  {:10.1f} us = {:.2f} tok/s\nprofiled                     {:10.1f} us, overhead {:+.1f} % (medians); its times are not "
      "headline numbers\n",
      1e6 * r.headline_seconds, 1 / r.headline_seconds, 1e6 * r.profiled_median, 100 * r.overhead());
  out += fmt::format("peak bandwidth               {:10.2f} GB/s ({})\n\n", 1e-9 * r.peak_bandwidth, r.peak_method);
  out += fmt::format("{:<28} {:>6} {:>11} {:>7} {:>12} {:>9} {:>9}\n", "component", "calls", "us", "share", "bytes", "GB/s", "roofline");
  int64_t calls = 0, bytes = 0;
  for (const ProfiledComponent& c : r.components) {
    out += fmt::format("{:<28} {:>6} {:>11.1f} {:>6.1f}% {:>12} {:>9.2f} {:>8.1f}%\n", c.name, c.calls, 1e6 * c.seconds, 100 * c.share, c.bytes,
                       1e-9 * c.bandwidth, 100 * c.roofline);
    calls += c.calls;
    bytes += c.bytes;
  }
  out += fmt::format("{:<28} {:>6} {:>11.1f} {:>6.1f}% {:>12}\n", "collectives", 0, 0.0, 0.0, 0);
  out += fmt::format("{:<28} {:>6} {:>11.1f} {:>6.1f}%\n", "gaps (residual)", "", 1e6 * r.gap_seconds, 100 * r.gap_seconds / r.profiled_seconds);
  out += fmt::format("{:<28} {:>6} {:>11.1f} {:>6.1f}% {:>12}\n", "step", calls, 1e6 * r.profiled_seconds, 100.0, bytes);
  const double floor = static_cast<double>(bytes) / r.peak_bandwidth;
  out += fmt::format(
      "\ncomponents: means over the faster half of the profiled steps; above 100 % of the roofline: read from a cache, not from memory\nleast bytes / peak "
      "bandwidth = {:.1f} us: the headline step reaches {:.1f} % of the roofline\n",
      1e6 * floor, 100 * floor / r.headline_seconds);
  return out;
}

std::string to_json(const ProfileReport& r) {
  Json ops = Json::array(), components = Json::array();
  for (const ProfiledOp& op : r.ops) {
    ops.push_back({{"op", op.op}, {"component", op.component}, {"calls", op.calls}, {"seconds", op.seconds}, {"bytes", op.bytes}, {"flops", op.flops}});
  }
  for (const ProfiledComponent& c : r.components) {
    components.push_back({{"name", c.name},
                          {"calls", c.calls},
                          {"seconds", c.seconds},
                          {"bytes", c.bytes},
                          {"share", c.share},
                          {"bandwidth", c.bandwidth},
                          {"roofline", c.roofline}});
  }
  return Json{{"kind", "dsv4-profile"},
              {"manifest", to_json_value(r.manifest)},
              {"steps", r.steps},
              {"context_tokens", r.context_tokens},
              {"headline_seconds", r.headline_seconds},
              {"profiled_seconds", r.profiled_seconds},
              {"profiled_median_seconds", r.profiled_median},
              {"overhead", r.overhead()},
              {"peak_bandwidth", r.peak_bandwidth},
              {"peak_method", r.peak_method},
              {"gap_seconds", r.gap_seconds},
              {"collectives_seconds", 0},
              {"components", std::move(components)},
              {"ops", std::move(ops)}}
             .dump(1, ' ', false, Json::error_handler_t::replace) +
         "\n";
}

std::string to_flame_svg(const ProfileReport& r) {
  constexpr double kWidth = 1000, kRow = 34, kTop = 46;
  const double total = r.profiled_seconds > 0 ? r.profiled_seconds : 1;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect "
      "width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
      kWidth + 20, kTop + 3 * kRow + 30);
  out += fmt::format("<text x=\"10\" y=\"20\" font-size=\"15\" font-weight=\"bold\">{}</text>\n",
                     xml_escape("One decode step: " + r.manifest.model + " on " + *r.manifest.find("backend")));
  out += fmt::format("<text x=\"10\" y=\"37\">{}</text>\n",
                     xml_escape(fmt::format("profiled {:.1f} us per step, widths are shares of it; without the profiler {:.1f} us", 1e6 * r.profiled_seconds,
                                            1e6 * r.headline_seconds)));
  const auto bar = [&](double begin, double seconds, int row, const std::string& name, const std::string& colour) {
    const double x = 10 + kWidth * begin / total, w = std::max(0.0, kWidth * seconds / total), y = kTop + kRow * row;
    const std::string tip = fmt::format("{}: {:.1f} us, {:.1f} %", name, 1e6 * seconds, 100 * seconds / total);
    out += fmt::format("<g><title>{}</title><rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\" stroke=\"#ffffff\"/>", xml_escape(tip),
                       x, y, w, kRow - 2, colour);
    // About 6.3 units a character; what does not fit is left to the tip.
    const size_t fits = static_cast<size_t>(std::max(0.0, (w - 6) / 6.3));
    if (fits >= 3)
      out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", x + 4, y + 20, xml_escape(name.size() <= fits ? name : name.substr(0, fits - 1) + "."));
    out += "</g>\n";
  };
  constexpr const char* kColours[] = {"#f4a582", "#92c5de", "#b8e186", "#fdd49e", "#c2a5cf", "#a6dba0", "#fddbc7", "#d1e5f0"};
  bar(0, r.profiled_seconds, 0, "step", "#dddddd");
  double at = 0;
  size_t colour = 0;
  for (const ProfiledComponent& c : r.components) {
    const std::string fill = kColours[colour++ % 8];
    bar(at, c.seconds, 1, c.name, fill);
    double inner = at;
    for (const ProfiledOp& op : r.ops) {
      if (op.component != c.name) continue;
      bar(inner, op.seconds, 2, op.op, fill);
      inner += op.seconds;
    }
    at += c.seconds;
  }
  if (r.gap_seconds > 0) bar(at, r.gap_seconds, 1, "gaps", "#bbbbbb");
  return out + "</svg>\n";
}

}  // namespace dsv4
