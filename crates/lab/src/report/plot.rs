//! Drawings in SVG, by hand: lines, steps, a Gantt chart and a heat map need no library.

use std::fmt::Write as _;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 34.0;

/// Colours that colour-blind readers can tell apart (Okabe and Ito 2008).
pub(super) const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000"];

pub(super) const STYLE: &str = "<style>text{font:12px sans-serif;fill:#333}.grid{stroke:#ddd}\
                                .end{text-anchor:end}.mid{text-anchor:middle}</style>\
                                <rect width='100%' height='100%' fill='#fff'/>";

const LINES_HEIGHT: f64 = 260.0;

/// Names of lines stand side by side below them, so many in a row.
const NAMES_A_ROW: usize = 8;
const NAME_HEIGHT: f64 = 20.0;

/// A named line through points, by x.
pub(super) struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Lines over a common pair of axes that begin at zero. `log_x` spreads small values.
pub(super) fn lines(series: &[Series], x_title: &str, y_title: &str, scale: Scale) -> String {
    let height = LINES_HEIGHT;
    let points = || series.iter().flat_map(|series| &series.points);
    let x_max = points().map(|(x, _)| *x).fold(1e-9, f64::max);
    let y_max = points().map(|(_, y)| *y).fold(1e-9, f64::max);
    let floor = match scale {
        Scale::Linear => 0.0,
        Scale::Logarithmic => {
            let least = points().map(|(x, _)| *x).filter(|x| *x > 0.0).fold(x_max, f64::min);
            least.max(x_max / 1e4)
        }
    };
    let inner = WIDTH - LEFT - RIGHT;
    let x = |value: f64| match scale {
        Scale::Linear => LEFT + value / x_max * inner,
        Scale::Logarithmic => {
            let part = (value.max(floor) / floor).ln() / (x_max / floor).ln().max(1e-9);
            LEFT + part * inner
        }
    };
    let y = |value: f64| height - BOTTOM - value / y_max * (height - TOP - BOTTOM);
    let mut svg = open(height);
    for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let (at, value) = (y(part * y_max), part * y_max);
        let _ = write!(
            svg,
            "<line x1='{LEFT}' x2='{}' y1='{at:.1}' y2='{at:.1}' class='grid'/><text x='{}' \
             y='{:.1}' class='end'>{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            short(value)
        );
        let value = match scale {
            Scale::Linear => part * x_max,
            Scale::Logarithmic => floor * (x_max / floor).powf(part),
        };
        let _ = write!(
            svg,
            "<text x='{:.1}' y='{}' class='mid'>{}</text>",
            x(value),
            height - BOTTOM + 16.0,
            short(value)
        );
    }
    let _ = write!(
        svg,
        "<text x='{:.1}' y='{}' class='mid'>{x_title}</text><text x='12' y='{:.1}' class='mid' \
         transform='rotate(-90 12 {:.1})'>{y_title}</text>",
        LEFT + inner / 2.0,
        height - 4.0,
        height / 2.0,
        height / 2.0
    );
    for (index, series) in series.iter().enumerate() {
        let mut path = String::new();
        for (row, (at, value)) in series.points.iter().enumerate() {
            let word = if row == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{word}{:.1} {:.1}", x(*at), y(*value));
        }
        let _ = write!(
            svg,
            "<path d='{path}' fill='none' stroke='{}' stroke-width='1.6'><title>{}</title></path>",
            COLOURS[index % COLOURS.len()],
            escape(&series.name)
        );
    }
    svg + "</svg>"
}

/// The same as a file of its own, with the names of the lines.
pub(super) fn standalone(series: &[Series], x_title: &str, y_title: &str, scale: Scale) -> String {
    let drawing = lines(series, x_title, y_title, scale);
    let mut legend = String::new();
    let width = (WIDTH - LEFT - RIGHT) / series.len().clamp(1, NAMES_A_ROW) as f64;
    for (index, series) in series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let x = LEFT + (index % NAMES_A_ROW) as f64 * width;
        let y = LINES_HEIGHT + (index / NAMES_A_ROW) as f64 * NAME_HEIGHT + 8.0;
        let _ = write!(
            legend,
            "<line x1='{x:.1}' x2='{:.1}' y1='{y}' y2='{y}' stroke='{colour}' stroke-width='2'/>\
             <text x='{:.1}' y='{}'>{}</text>",
            x + 20.0,
            x + 26.0,
            y + 4.0,
            escape(&series.name)
        );
    }
    let height = LINES_HEIGHT + series.len().div_ceil(NAMES_A_ROW) as f64 * NAME_HEIGHT;
    let named = open(height).replacen("<svg ", "<svg xmlns='http://www.w3.org/2000/svg' ", 1);
    let drawing = drawing.replacen(&open(LINES_HEIGHT), &named, 1);
    drawing.replacen('>', &format!(">{STYLE}"), 1).replace("</svg>", &(legend + "</svg>\n"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    Linear,
    Logarithmic,
}

/// A bar of a Gantt chart.
pub(super) struct Bar {
    pub row: usize,
    pub from: f64,
    pub to: f64,
    pub colour: &'static str,
    pub title: String,
}

/// Bars in rows over time, whose `unit` is written below.
pub(super) fn gantt(rows: &[String], bars: &[Bar], end: f64, unit: &str) -> String {
    let row_height = (420.0 / rows.len().max(1) as f64).clamp(2.0, 14.0);
    let height = TOP + row_height * rows.len() as f64 + BOTTOM;
    let inner = WIDTH - LEFT - RIGHT;
    let x = |seconds: f64| LEFT + seconds / end.max(1e-9) * inner;
    let mut svg = open(height);
    for bar in bars {
        let _ = write!(
            svg,
            "<rect x='{:.2}' y='{:.1}' width='{:.2}' height='{:.1}' fill='{}'>\
             <title>{}</title></rect>",
            x(bar.from),
            TOP + row_height * bar.row as f64,
            (x(bar.to) - x(bar.from)).max(0.3),
            (row_height - 0.5).max(1.0),
            bar.colour,
            escape(&bar.title)
        );
    }
    // As many names as can be read.
    let every = (12.0 / row_height).ceil() as usize;
    for (row, name) in rows.iter().enumerate().step_by(every.max(1)) {
        let _ = write!(
            svg,
            "<text x='{}' y='{:.1}' class='end small'>{}</text>",
            LEFT - 4.0,
            TOP + row_height * row as f64 + row_height.min(10.0) / 2.0 + 3.5,
            escape(name)
        );
    }
    svg + &time_axis(height, end, unit) + "</svg>"
}

/// Rows of values between 0 and 1 over time, whose `unit` is written below.
pub(super) fn heat_map(rows: &[(String, Vec<f64>)], end: f64, unit: &str) -> String {
    let row_height = 18.0;
    let height = TOP + row_height * rows.len() as f64 + BOTTOM;
    let inner = WIDTH - LEFT - RIGHT;
    let mut svg = open(height);
    for (row, (name, values)) in rows.iter().enumerate() {
        let y = TOP + row_height * row as f64;
        let _ = write!(
            svg,
            "<text x='{}' y='{:.1}' class='end small'>{}</text>",
            LEFT - 4.0,
            y + 12.0,
            escape(name)
        );
        let width = inner / values.len().max(1) as f64;
        for (column, value) in values.iter().enumerate() {
            let light = 96.0 - 62.0 * value.clamp(0.0, 1.0);
            let _ = write!(
                svg,
                "<rect x='{:.2}' y='{y:.1}' width='{:.2}' height='{}' \
                 fill='hsl(205 70% {light:.0}%)'><title>{:.0} %</title></rect>",
                LEFT + width * column as f64,
                width + 0.3,
                row_height - 1.0,
                value * 100.0
            );
        }
    }
    svg + &time_axis(height, end, unit) + "</svg>"
}

fn open(height: f64) -> String {
    format!("<svg viewBox='0 0 {WIDTH} {height:.0}' role='img'>")
}

fn time_axis(height: f64, end: f64, unit: &str) -> String {
    let inner = WIDTH - LEFT - RIGHT;
    let mut text = String::new();
    for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let _ = write!(
            text,
            "<text x='{:.1}' y='{:.1}' class='mid'>{}</text>",
            LEFT + part * inner,
            height - BOTTOM + 16.0,
            short(part * end)
        );
    }
    let _ = write!(
        text,
        "<text x='{:.1}' y='{:.1}' class='mid'>{unit}</text>",
        LEFT + inner / 2.0,
        height - 4.0
    );
    text
}

/// A number in a few characters.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{:.1}M", value / 1e6),
        v if v >= 1e4 => format!("{:.0}k", value / 1e3),
        v if v >= 1e3 => format!("{:.1}k", value / 1e3),
        v if v >= 10.0 || v == 0.0 => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}

pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '\'' => safe.push_str("&#39;"),
            '"' => safe.push_str("&quot;"),
            other => safe.push(other),
        }
    }
    safe
}
