#include "verify/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace dsv4 {
namespace {

constexpr double kWidth = 760, kHeight = 360, kLeft = 76, kRight = 150, kTop = 40, kBottom = 56;
// Colours that stay apart in common colour blindness (Okabe and Ito).
constexpr const char* kColours[6] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};

struct Axis {
  double low = 0, high = 1;
  bool log = false;
  std::vector<double> ticks;

  double place(double v) const {
    const double a = log ? std::log10(v) : v, l = log ? std::log10(low) : low, h = log ? std::log10(high) : high;
    return kTop + (kHeight - kTop - kBottom) * (1 - (a - l) / (h - l));
  }
};

bool drawable(double v, bool log) { return std::isfinite(v) && (!log || v > 0); }

Axis make_axis(const LinePlot& plot) {
  Axis axis;
  axis.log = plot.log_y;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  const auto include = [&](double v) {
    if (!drawable(v, axis.log)) return;
    low = std::min(low, v);
    high = std::max(high, v);
  };
  for (const PlotSeries& s : plot.series) {
    for (const double v : s.values) include(v);
  }
  if (!plot.bound_name.empty()) include(plot.bound);
  if (!(low <= high)) {
    low = axis.log ? 0.1 : 0;
    high = 1;
  }
  if (axis.log) {
    axis.low = std::pow(10, std::floor(std::log10(low)));
    axis.high = std::pow(10, std::ceil(std::log10(high)));
    if (axis.low == axis.high) axis.high *= 10;
    const int decades = static_cast<int>(std::lround(std::log10(axis.high / axis.low))), step = std::max(1, decades / 6);
    for (int d = 0; d <= decades; d += step) axis.ticks.push_back(axis.low * std::pow(10, d));
    return axis;
  }
  if (low == high) {
    low -= 0.5;
    high += 0.5;
  }
  // A step of 1, 2 or 5 times a power of ten that gives about five ticks.
  const double raw = (high - low) / 5, power = std::pow(10, std::floor(std::log10(raw)));
  const double step = power * (raw / power < 1.5 ? 1 : raw / power < 3.5 ? 2 : raw / power < 7.5 ? 5 : 10);
  axis.low = std::floor(low / step) * step;
  axis.high = std::ceil(high / step) * step;
  for (double t = axis.low; t <= axis.high + step / 2; t += step) axis.ticks.push_back(t);
  return axis;
}

std::string text(double x, double y, const std::string& anchor, const std::string& extra, const std::string& words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, extra, xml_escape(words));
}

std::string draw(const LinePlot& plot) {
  const Axis axis = make_axis(plot);
  size_t count = plot.x_names.size();
  for (const PlotSeries& s : plot.series) count = std::max(count, s.values.size());
  const double inner = kWidth - kLeft - kRight;
  const auto x_of = [&](size_t i) { return kLeft + (count < 2 ? inner / 2 : inner * static_cast<double>(i) / static_cast<double>(count - 1)); };
  std::string out = text(kLeft, 22, "start", " font-size=\"15\" font-weight=\"bold\"", plot.title);
  for (const double t : axis.ticks) {
    const double y = axis.place(t);
    out += fmt::format("<line x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\" stroke=\"#dddddd\"/>\n", kLeft, y, kWidth - kRight, y);
    out += text(kLeft - 8, y + 4, "end", "", axis.log ? fmt::format("{:.0e}", t) : fmt::format("{:.4g}", std::fabs(t) < 1e-12 ? 0.0 : t));
  }
  const size_t every = std::max<size_t>(1, (count + 15) / 16);
  for (size_t i = 0; i < plot.x_names.size(); i += every) out += text(x_of(i), kHeight - kBottom + 18, "middle", "", plot.x_names[i]);
  out += text(kLeft + inner / 2, kHeight - 14, "middle", "", plot.x_label);
  out += fmt::format("<text transform=\"translate(16 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n", kTop + (kHeight - kTop - kBottom) / 2,
                     xml_escape(plot.y_label));
  out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#888888\"/>\n", kLeft, kTop, inner, kHeight - kTop - kBottom);
  if (!plot.bound_name.empty() && drawable(plot.bound, axis.log)) {
    const double y = axis.place(plot.bound);
    out += fmt::format("<line x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\" stroke=\"#444444\" stroke-dasharray=\"6 4\"/>\n", kLeft, y, kWidth - kRight, y);
  }
  const auto legend = [&](size_t entry, const std::string& stroke, const std::string& name) {
    const double y = kTop + 14 + 20 * static_cast<double>(entry);
    out += fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" {}/>\n", kWidth - kRight + 10, y - 4, kWidth - kRight + 30, y - 4, stroke);
    out += text(kWidth - kRight + 36, y, "start", "", name);
  };
  for (size_t s = 0; s < plot.series.size(); ++s) {
    const char* colour = kColours[s % 6];
    std::string path;
    bool pen = false;
    std::string dots;
    for (size_t i = 0; i < plot.series[s].values.size(); ++i) {
      const double v = plot.series[s].values[i];
      if (!drawable(v, axis.log)) {
        pen = false;
        continue;
      }
      path += fmt::format("{}{:.1f} {:.1f}", pen ? " L" : (path.empty() ? "M" : " M"), x_of(i), axis.place(v));
      dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", x_of(i), axis.place(v), colour);
      pen = true;
    }
    if (!path.empty()) out += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", path, colour) + dots;
    legend(s, fmt::format("stroke=\"{}\" stroke-width=\"3\"", colour), plot.series[s].name);
  }
  if (!plot.bound_name.empty()) legend(plot.series.size(), "stroke=\"#444444\" stroke-dasharray=\"6 4\"", plot.bound_name);
  return out;
}

}  // namespace

std::string xml_escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string to_svg(const std::vector<LinePlot>& plots) {
  const double height = kHeight * static_cast<double>(std::max<size_t>(1, plots.size()));
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
      kWidth, height);
  for (size_t i = 0; i < plots.size(); ++i) out += fmt::format("<g transform=\"translate(0 {})\">\n{}</g>\n", kHeight * static_cast<double>(i), draw(plots[i]));
  return out + "</svg>\n";
}

}  // namespace dsv4
