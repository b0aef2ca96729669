// The picture of an EvalReport: one or two panels with the formats' lines, and a legend.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "eval/kept_quality.h"
#include "eval/report.h"

namespace kvasir::eval {
namespace {

constexpr double kWidth = 900, kLeft = 86, kPlotWidth = 560, kPlotHeight = 290;
constexpr double kTop = 102, kPanelGap = 96, kBottom = 66, kLegendLine = 24;
// Dark enough on white, and distinguishable for most people (after Okabe and Ito).
constexpr std::array<const char*, 9> kColours = {"#6b7280", "#a8a29e", "#0072b2",
                                                 "#56b4e9", "#009e73", "#e69f00",
                                                 "#d55e00", "#cc79a7", "#1f2937"};

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return out;
}

struct Line {
  std::string name;
  std::string colour;
  bool dashed = false;
  std::vector<Estimate> points;  // by place on the x axis
};

struct Panel {
  std::string title, x_title;
  std::vector<std::string> places;  // labels on the x axis
  std::vector<Line> lines;
};

// Decades that hold all points above 0, at least one.
struct Scale {
  int low = -1, high = 0;
  double top = 0;  // y of `high`
  double Y(double value) const {
    const double at = std::clamp(std::log10(std::max(value, 1e-300)), double(low), double(high));
    return top + kPlotHeight * (high - at) / (high - low);
  }
};

Scale ScaleOf(const Panel& panel, double top) {
  double least = 1e300, most = 0;
  for (const Line& line : panel.lines) {
    for (const Estimate& point : line.points) {
      if (point.value <= 0) continue;
      least = std::min(least, point.value);
      most = std::max(most, point.value + point.error);
    }
  }
  Scale scale{.low = -4, .high = 0, .top = top};
  if (most <= 0) return scale;
  scale.low = static_cast<int>(std::floor(std::log10(least)));
  scale.high = std::max(scale.low + 1, static_cast<int>(std::ceil(std::log10(most))));
  return scale;
}

std::string DecadeText(int decade) {
  if (decade >= -4 && decade <= 3) return fmt::format("{:g}", std::pow(10.0, decade));
  return fmt::format("1e{}", decade);
}

double XOf(const Panel& panel, size_t place) {
  const auto count = static_cast<double>(panel.places.size());
  return kLeft + kPlotWidth * (static_cast<double>(place) + 0.5) / count;
}

std::string Frame(const Panel& panel, const Scale& scale) {
  std::string out = fmt::format("<text class=\"title\" x=\"{}\" y=\"{}\">{}</text>\n", kLeft,
                                scale.top - 16, Escaped(panel.title));
  const int step = std::max(1, (scale.high - scale.low + 7) / 8);
  for (int decade = scale.low; decade <= scale.high; decade += step) {
    const double y = scale.Y(std::pow(10.0, decade));
    out += fmt::format(
        "<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
        kLeft, kLeft + kPlotWidth, y, kLeft - 10, y + 4, DecadeText(decade));
  }
  const double bottom = scale.top + kPlotHeight;
  out += fmt::format("<line class=\"axis\" x1=\"{0}\" x2=\"{1}\" y1=\"{2}\" y2=\"{2}\"/>\n", kLeft,
                     kLeft + kPlotWidth, bottom);
  const size_t every = (panel.places.size() + 15) / 16;
  for (size_t i = 0; i < panel.places.size(); i += every) {
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                       XOf(panel, i), bottom + 20, Escaped(panel.places[i]));
  }
  out += fmt::format("<text class=\"label\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                     kLeft + kPlotWidth / 2, bottom + 44, Escaped(panel.x_title));
  const double middle = scale.top + kPlotHeight / 2;
  out += fmt::format(
      "<text class=\"label\" text-anchor=\"middle\" transform=\"translate(22 {}) "
      "rotate(-90)\">mean KL divergence from f32 (nats)</text>\n",
      middle);
  return out;
}

std::string Drawn(const Panel& panel, const Line& line, const Scale& scale) {
  std::string path, marks;
  for (size_t i = 0; i < line.points.size(); ++i) {
    const Estimate& point = line.points[i];
    if (point.value <= 0) continue;  // a logarithmic axis has no 0
    const double x = XOf(panel, i), y = scale.Y(point.value);
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : " L", x, y);
    marks += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.6\" fill=\"{}\"/>", x, y,
                         line.dashed ? "#ffffff" : line.colour);
    if (point.error > 0) {
      marks += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>", x,
                           scale.Y(point.value + point.error),
                           scale.Y(std::max(point.value - point.error, 1e-300)));
    }
  }
  return fmt::format(
      "<g stroke=\"{}\" stroke-width=\"1.6\"><path d=\"{}\" fill=\"none\" "
      "stroke-width=\"2.2\"{}/>{}</g>\n",
      line.colour, path.empty() ? "M0 0" : path, line.dashed ? " stroke-dasharray=\"6 4\"" : "",
      marks);
}

std::string Legend(const Panel& panel, double top) {
  std::string out;
  double y = top + 10;
  for (const Line& line : panel.lines) {
    const double x = kLeft + kPlotWidth + 28;
    out += fmt::format(
        "<line x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\" stroke=\"{}\" stroke-width=\"2.4\"{}/>"
        "<text class=\"name\" x=\"{}\" y=\"{}\">{}</text>\n",
        x, x + 26, y, y, line.colour, line.dashed ? " stroke-dasharray=\"6 4\"" : "", x + 34, y + 4,
        Escaped(line.name));
    y += kLegendLine;
  }
  return out;
}

// Writes "1K" from 1024 on.
std::string DepthText(uint32_t tokens) {
  return tokens >= 1024 && tokens % 1024 == 0 ? fmt::format("{}K", tokens / 1024)
                                              : std::to_string(tokens);
}

std::string ShortName(const Measured& measured) {
  std::string name = measured.kv_format;
  const size_t at = name.find("; f16 in layers ");
  if (at != std::string::npos) name.replace(at, 16, ", f16 in ");
  if (name.size() > 26) name = name.substr(0, 25) + "…";
  return name;
}

Panel DepthPanel(const EvalReport& report) {
  Panel panel{"By context depth", "tokens before the predicted one", {}, {}};
  for (const DepthQuality& depth : report.formats.front().measured.depths) {
    panel.places.push_back(
        fmt::format("{}–{}", DepthText(depth.begin),
                    depth.end > 1024 ? DepthText(depth.end) : std::to_string(depth.end - 1)));
  }
  for (size_t i = 0; i < report.formats.size(); ++i) {
    const FormatReport& format = report.formats[i];
    const auto add = [&](const Measured& measured, bool dashed) {
      Line line{ShortName(measured), kColours[i % kColours.size()], dashed, {}};
      for (const DepthQuality& depth : measured.depths) line.points.push_back(depth.quality.kl);
      panel.lines.push_back(std::move(line));
    };
    add(format.measured, false);
    if (format.layers && format.layers->verified) add(*format.layers->verified, true);
  }
  return panel;
}

Panel LayerPanel(const EvalReport& report) {
  Panel panel{"The format in one layer alone, all others f16", "layer", {}, {}};
  for (size_t i = 0; i < report.formats.size(); ++i) {
    const FormatReport& format = report.formats[i];
    if (!format.layers) continue;
    Line line{format.measured.kv_format, kColours[i % kColours.size()], false, {}};
    panel.places.clear();
    for (const LayerCost& cost : format.layers->costs) {
      panel.places.push_back(std::to_string(cost.layer));
      line.points.push_back(cost.kl);
    }
    panel.lines.push_back(std::move(line));
  }
  return panel;
}

}  // namespace

std::string SvgOf(const EvalReport& report) {
  std::vector<Panel> panels = {DepthPanel(report)};
  if (Panel layers = LayerPanel(report); !layers.lines.empty()) panels.push_back(std::move(layers));
  std::string body;
  double top = kTop, bottom = 0;
  for (const Panel& panel : panels) {
    const Scale scale = ScaleOf(panel, top);
    body += Frame(panel, scale);
    for (const Line& line : panel.lines) body += Drawn(panel, line, scale);
    body += Legend(panel, top);
    const double legend = kLegendLine * static_cast<double>(panel.lines.size());
    bottom = top + std::max(kPlotHeight + kBottom, legend);
    top = bottom - kBottom + kPanelGap + kBottom / 2;
  }
  const std::string title =
      fmt::format("What a KV format costs {} ({})", report.model, report.weights);
  const std::string about = fmt::format("{} tokens in {} windows: {}", CountText(report.tokens),
                                        report.windows, report.text);
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" role=\"img\">\n<title>{2}</title>\n<style>text{{font:12px "
      "system-ui,-apple-system,\"Segoe UI\",Helvetica,Arial,sans-serif;fill:#374151}}"
      ".head{{font-size:18px;font-weight:600;fill:#111827}}.title{{font-size:14px;"
      "font-weight:600;fill:#111827}}.label{{fill:#6b7280}}.grid{{stroke:#e5e7eb}}"
      ".axis{{stroke:#6b7280}}</style>\n<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n"
      "<text class=\"head\" x=\"{3}\" y=\"30\">{2}</text>\n<text class=\"label\" x=\"{3}\" "
      "y=\"50\">{4}</text>\n{5}</svg>\n",
      kWidth, bottom, Escaped(title), kLeft, Escaped(about), body);
}

}  // namespace kvasir::eval
