// Small line plots as SVG text, for reports: no script, no external font, readable on white and in print.
#pragma once

#include <string>
#include <vector>

namespace dsv4 {

struct PlotSeries {
  std::string name;
  std::vector<double> values;  // one per x; what is not finite (log scale: not positive) leaves a gap
};

struct LinePlot {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<std::string> x_names;  // one per x; every n-th is written so that they do not collide
  std::vector<PlotSeries> series;    // at most 6 are told apart
  bool log_y = false;
  // A horizontal dashed line, e.g. a bound; not drawn when not finite.
  double bound = 0;
  std::string bound_name;  // empty = no line
};

// One SVG document, 760 x 360 per plot, stacked.
std::string to_svg(const std::vector<LinePlot>& plots);

// Text with & < > " escaped.
std::string xml_escape(const std::string& text);

}  // namespace dsv4
