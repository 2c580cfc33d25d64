//! Predicted beside measured, as a drawing of its own: what is right lies on the line.

use std::fmt::Write as _;

use super::plot::{COLOURS, STYLE, escape};

/// Points of one origin: measured, predicted.
#[derive(Debug, Clone, PartialEq)]
pub struct Cloud {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Points that are drawn of each origin.
const POINTS_MAX: usize = 500;

const SIDE: f64 = 520.0;
const MARGIN: f64 = 56.0;
/// Width of the names beside it.
const NAMES: f64 = 220.0;

/// SVG over two logarithmic axes with the same ends; points that are not positive are left out.
pub fn scatter_plot(clouds: &[Cloud], unit: &str) -> String {
    let positive = |point: &&(f64, f64)| point.0 > 0.0 && point.1 > 0.0;
    let all = || clouds.iter().flat_map(|cloud| &cloud.points).filter(positive);
    let least = all().map(|point| point.0.min(point.1)).fold(f64::INFINITY, f64::min).log10();
    let most = all().map(|point| point.0.max(point.1)).fold(0.0, f64::max).log10();
    let (first, last) = (least.floor(), most.ceil().max(least.floor() + 1.0));
    let part = |value: f64| (value.log10() - first) / (last - first) * (SIDE - 2.0 * MARGIN);
    let (x, y) = (|value: f64| MARGIN + part(value), |value: f64| SIDE - MARGIN - part(value));
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {} {SIDE}' role='img'>{STYLE}",
        SIDE + NAMES
    );
    for decade in first as i32..=last as i32 {
        let value = 10_f64.powi(decade);
        let (across, up, end) = (x(value), y(value), SIDE - MARGIN);
        let _ = write!(
            svg,
            "<line x1='{across:.1}' x2='{across:.1}' y1='{MARGIN}' y2='{end}' class='grid'/>\
             <line x1='{MARGIN}' x2='{end}' y1='{up:.1}' y2='{up:.1}' class='grid'/>\
             <text x='{across:.1}' y='{:.1}' class='mid'>{value}</text>\
             <text x='{:.1}' y='{:.1}' class='end'>{value}</text>",
            end + 16.0,
            MARGIN - 6.0,
            up + 4.0,
        );
    }
    let (low, high) = (10_f64.powf(first), 10_f64.powf(last));
    let _ = write!(
        svg,
        "<line x1='{:.1}' y1='{:.1}' x2='{:.1}' y2='{:.1}' stroke='#999'/>\
         <text x='{:.1}' y='{:.1}' class='mid'>measured, {unit}</text>\
         <text x='14' y='{:.1}' class='mid' transform='rotate(-90 14 {:.1})'>predicted, {unit}\
         </text>",
        x(low),
        y(low),
        x(high),
        y(high),
        SIDE / 2.0,
        SIDE - 12.0,
        SIDE / 2.0,
        SIDE / 2.0,
    );
    for (index, cloud) in clouds.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let every = cloud.points.len().div_ceil(POINTS_MAX).max(1);
        for point in cloud.points.iter().step_by(every).filter(positive) {
            let _ = write!(
                svg,
                "<circle cx='{:.1}' cy='{:.1}' r='1.8' fill='{colour}' fill-opacity='0.5'/>",
                x(point.0),
                y(point.1)
            );
        }
        let _ = write!(
            svg,
            "<text x='{}' y='{}' style='fill:{colour}'>{}</text>",
            SIDE - MARGIN + 12.0,
            MARGIN + 14.0 + 15.0 * index as f64,
            escape(&cloud.name)
        );
    }
    svg + "</svg>\n"
}
