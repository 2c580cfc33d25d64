//! A picture as SVG, in light colours.

use std::collections::BTreeMap;
use std::fmt::Write;

use het_wire::topology::Role;

use super::layout::{Area, HEAD, LINE_HEIGHT, Layout, MARGIN, layout, row};
use super::picture::{Line, Picture, Place, Shape};

/// Lines of other kinds are grey.
const COLOURS: [(&str, &str); 13] = [
    ("nvlink", "#6a9f1f"),
    ("hccs", "#c2554f"),
    ("ub", "#c2554f"),
    ("module", "#8e24aa"),
    ("c2c", "#00897b"),
    ("pcie", "#78909c"),
    ("socket", "#a1887f"),
    ("nic", "#3d8fc9"),
    ("leaf", "#3d8fc9"),
    ("tor", "#d08a2e"),
    ("spine", "#5566bb"),
    ("core", "#7e57c2"),
    ("memory", "#9e9e9e"),
];
const GREY: &str = "#8a8a8a";

/// In one row, shapes nearer than this are joined straight.
const NEIGHBOURS: f64 = 40.0;
/// Depth of the control points of the longest bow below a row.
const BOW_MAX: f64 = 84.0;
/// The same between sockets, which have a row below them.
const BOW_OF_SOCKETS: f64 = 44.0;
/// Below the last row, where the lines of folded nodes run together.
const BUS: f64 = 18.0;

pub fn text(picture: &Picture) -> String {
    let layout = layout(picture);
    let mut svg = Svg { picture, layout: &layout, text: String::new() };
    svg.head();
    svg.frame();
    svg.lines();
    svg.frame_title();
    svg.shapes();
    svg.labels();
    svg.text.push_str("</svg>\n");
    svg.text
}

struct Svg<'a> {
    picture: &'a Picture,
    layout: &'a Layout,
    text: String,
}

impl Svg<'_> {
    fn put(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a text cannot fail.
        let _ = writeln!(self.text, "{line}");
    }

    fn head(&mut self) {
        let Layout { width, height, .. } = self.layout;
        self.put(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             width=\"{width:.0}\" height=\"{height:.0}\" \
             font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" font-size=\"10.5\">"
        ));
        self.put(format_args!("<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>"));
        let title = escaped(&self.picture.title);
        self.put(format_args!(
            "<text x=\"20\" y=\"28\" font-size=\"17\" font-weight=\"bold\" fill=\"#37474f\">\
             {title}</text>"
        ));
        let subtitle = escaped(&self.picture.subtitle);
        self.put(format_args!(
            "<text x=\"20\" y=\"47\" font-size=\"12\" fill=\"#607d8b\">{subtitle}</text>"
        ));
    }

    fn frame(&mut self) {
        let Some(frame) = self.layout.frame else { return };
        self.rectangle(frame, "#fbfcfd", "#b0bec5");
    }

    /// Over the lines, with a rim that keeps them off.
    fn frame_title(&mut self) {
        let Some(frame) = self.layout.frame else { return };
        let (x, y) = (frame.left() + 10.0, frame.top() + 15.0);
        let title = escaped(&self.picture.frame);
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"#607d8b\" font-weight=\"bold\" \
             stroke=\"#fbfcfd\" stroke-width=\"4\" paint-order=\"stroke\">{title}</text>"
        ));
    }

    fn rectangle(&mut self, area: Area, fill: &str, stroke: &str) {
        let (x, y) = (area.left(), area.top());
        let Area { width, height, .. } = area;
        self.put(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"6\" \
             fill=\"{fill}\" stroke=\"{stroke}\"/>"
        ));
    }

    fn lines(&mut self) {
        for line in &self.picture.lines {
            let (from, to) = (self.layout.areas[line.from], self.layout.areas[line.to]);
            // Folded nodes reach switches at the bottom from below, not across the node.
            let ends = [line.from, line.to].map(|end| self.picture.shapes[end].role);
            let below = self.beside(line) && ends.contains(&Role::PeerSwitch);
            let bow = if line.kind == "socket" { BOW_OF_SOCKETS } else { BOW_MAX };
            let path = path(from, to, bow, below.then_some(from.bottom().max(to.bottom())));
            let colour = colour(&line.kind);
            self.put(format_args!(
                "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.3\" \
                 stroke-opacity=\"0.7\"/>"
            ));
        }
    }

    /// Whether a line leads to a box of folded nodes.
    fn beside(&self, line: &Line) -> bool {
        [line.from, line.to].iter().any(|end| self.picture.shapes[*end].place == Place::Beside)
    }

    fn shapes(&mut self) {
        for (shape, area) in self.picture.shapes.iter().zip(&self.layout.areas) {
            let (fill, stroke) = fill(shape);
            self.rectangle(*area, fill, stroke);
            let first = area.y - (shape.lines.len() as f64 - 1.0) / 2.0 * LINE_HEIGHT + 3.7;
            for (index, line) in shape.lines.iter().enumerate() {
                let (x, y) = (area.x, first + index as f64 * LINE_HEIGHT);
                let (weight, ink) = match index {
                    0 => ("bold", "#37474f"),
                    _ => ("normal", "#607d8b"),
                };
                let line = escaped(line);
                self.put(format_args!(
                    "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" \
                     font-weight=\"{weight}\" fill=\"{ink}\">{line}</text>"
                ));
            }
        }
    }

    /// What lines carry, in the margin at the height where they run.
    fn labels(&mut self) {
        let mut at: BTreeMap<i64, Vec<(&str, &str)>> = BTreeMap::new();
        for line in &self.picture.lines {
            let ends = [line.from, line.to];
            let [from, to] = ends.map(|end| self.layout.areas[end]);
            let [upper, lower] = if from.y <= to.y { [from, to] } else { [to, from] };
            let rows = ends.map(|end| row(self.picture.shapes[end].role));
            let y = match self.beside(line) {
                // The same links as those of the node in detail.
                true => continue,
                false if rows[0] == rows[1] => upper.bottom() + 12.0,
                false => (upper.bottom() + lower.top()) / 2.0,
            };
            let labels = at.entry(y.round() as i64).or_default();
            if !labels.contains(&(line.kind.as_str(), line.label.as_str())) {
                labels.push((&line.kind, &line.label));
            }
        }
        let mut lowest = HEAD - 20.0;
        for (y, labels) in at {
            let top = y as f64 - (labels.len() as f64 - 1.0) / 2.0 * LINE_HEIGHT + 3.7;
            let mut y = top.max(lowest);
            for (kind, label) in labels {
                let colour = colour(kind);
                let (x, label) = (MARGIN - 34.0, escaped(label));
                self.put(format_args!(
                    "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"end\" fill=\"{colour}\">\
                     {label}</text>"
                ));
                y += LINE_HEIGHT;
            }
            lowest = y;
        }
    }
}

/// From the bottom of the upper to the top of the lower; a bow below where both stand in one row.
fn path(from: Area, to: Area, bow: f64, lowest: Option<f64>) -> String {
    let (upper, lower) = if from.y <= to.y { (from, to) } else { (to, from) };
    if let Some(lowest) = lowest {
        let (x, top, bus) = (upper.x, upper.bottom(), lowest + BUS);
        let (end, bottom) = (lower.x, lower.bottom());
        return format!("M{x:.1} {top:.1} V{bus:.1} H{end:.1} V{bottom:.1}");
    }
    if lower.top() >= upper.bottom() {
        let (x, y) = (upper.x, upper.bottom());
        return format!("M{x:.1} {y:.1} L{:.1} {:.1}", lower.x, lower.top());
    }
    let (left, right) = if from.x <= to.x { (from, to) } else { (to, from) };
    if right.left() - left.right() < NEIGHBOURS {
        return format!("M{:.1} {:.1} L{:.1} {:.1}", left.right(), left.y, right.left(), right.y);
    }
    let (start, end, y) = (left.x, right.x, left.bottom());
    let low = y + (8.0 + (end - start) * 0.09).min(bow);
    format!("M{start:.1} {y:.1} C{start:.1} {low:.1} {end:.1} {low:.1} {end:.1} {y:.1}")
}

fn colour(kind: &str) -> &'static str {
    COLOURS.iter().find(|(word, _)| *word == kind).map_or(GREY, |(_, colour)| colour)
}

fn fill(shape: &Shape) -> (&'static str, &'static str) {
    match shape.role {
        Role::Core => ("#ede7f6", "#9575cd"),
        Role::Spine => ("#e8eaf6", "#7986cb"),
        Role::Leaf => ("#e3f2fd", "#64a8dc"),
        Role::Tor => ("#fff3e0", "#dda75a"),
        Role::Nic => ("#e1f5fe", "#7cc0e0"),
        Role::Pcie => ("#eceff1", "#90a4ae"),
        Role::Socket => ("#efebe9", "#a1887f"),
        Role::Accelerator => ("#f1f8e9", "#8ab661"),
        Role::PeerSwitch => ("#f9fbe7", "#b7bf5e"),
        Role::Node | Role::Switch => ("#fafafa", "#b0bec5"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
