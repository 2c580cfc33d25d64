//! How rounds grow with the cluster and its queue, as a drawing of its own.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::plot::{COLOURS, Scale, Series, lines};
use crate::RoundTimes;

/// A measured size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalingRow {
    pub nodes: u32,
    pub jobs: u64,
    pub times: RoundTimes,
}

const STYLE: &str = "<style>text{font:12px sans-serif;fill:#333}.grid{stroke:#ddd}.end{text-anchor:\
                     end}.mid{text-anchor:middle}</style><rect width='100%' height='100%' \
                     fill='#fff'/>";

/// SVG with a line of 99th percentiles over waiting jobs for each number of nodes.
pub fn scaling_plot(rows: &[ScalingRow]) -> String {
    let mut by_nodes: BTreeMap<u32, Vec<(f64, f64)>> = BTreeMap::new();
    for row in rows {
        by_nodes.entry(row.nodes).or_default().push((row.jobs as f64, row.times.p99_ms));
    }
    let series = |(nodes, points)| Series { name: format!("{nodes} nodes"), points };
    let series: Vec<Series> = by_nodes.into_iter().map(series).collect();
    let drawing = lines(&series, "waiting jobs", "p99 of a round, ms", Scale::Logarithmic);
    let mut legend = String::new();
    for (index, series) in series.iter().enumerate() {
        let (colour, y) = (COLOURS[index % COLOURS.len()], 26 + 18 * index);
        let _ = write!(
            legend,
            "<line x1='84' x2='104' y1='{y}' y2='{y}' stroke='{colour}' stroke-width='2'/>\
             <text x='110' y='{}'>{}</text>",
            y + 4,
            series.name
        );
    }
    let named = "<svg xmlns='http://www.w3.org/2000/svg' ";
    let drawing = drawing.replacen("<svg ", named, 1);
    drawing.replacen('>', &format!(">{STYLE}"), 1).replace("</svg>", &(legend + "</svg>\n"))
}
