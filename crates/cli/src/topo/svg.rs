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

pub fn text(picture: &Picture) -> String {
    let layout = layout(picture);
    let mut svg = Svg { picture, layout: &layout, text: String::new() };
    svg.head();
    svg.frame();
    svg.lines();
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
        let (x, y) = (frame.left() + 10.0, frame.top() + 15.0);
        let title = escaped(&self.picture.frame);
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"#607d8b\" font-weight=\"bold\">{title}</text>"
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
            let path = path(from, to, self.beside(line));
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
fn path(from: Area, to: Area, aside: bool) -> String {
    let (upper, lower) = if from.y <= to.y { (from, to) } else { (to, from) };
    if lower.top() >= upper.bottom() {
        // Folded nodes: lines to lower rows leave the box at its side.
        if aside && lower.y > upper.y + 150.0 && upper.x > lower.x {
            let (x, y) = (upper.left() + 24.0, upper.bottom());
            return format!("M{x:.1} {y:.1} L{:.1} {:.1}", lower.x, lower.top());
        }
        return format!("M{:.1} {:.1} L{:.1} {:.1}", upper.x, upper.bottom(), lower.x, lower.top());
    }
    let (left, right) = if from.x <= to.x { (from, to) } else { (to, from) };
    let way = right.left() - left.right();
    if way < 40.0 {
        return format!("M{:.1} {:.1} L{:.1} {:.1}", left.right(), left.y, right.left(), right.y);
    }
    let depth = 10.0 + (right.x - left.x) * 0.09;
    let y = left.bottom();
    format!(
        "M{:.1} {y:.1} C{:.1} {:.1} {:.1} {:.1} {:.1} {y:.1}",
        left.x,
        left.x,
        y + depth,
        right.x,
        y + depth,
        right.x
    )
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
