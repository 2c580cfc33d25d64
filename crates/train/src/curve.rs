//! The losses of a run, few enough to be drawn, and their picture.

use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// A curve with more points has two joined to one, so that it never grows with the run.
const POINTS_MAX: usize = 512;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 240.0;
/// Room for the labels of losses to the left, and for those of steps below.
const LEFT: f64 = 56.0;
const BELOW: f64 = 24.0;
const MARGIN: f64 = 12.0;

/// Mean losses of equally many consecutive steps each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Steps of a point
    every: u64,
    points: Vec<f64>,
    /// Sum over the steps since the last point
    sum: f64,
    /// Steps since the last point
    count: u64,
}

impl Default for Curve {
    fn default() -> Self {
        Self { every: 1, points: Vec::new(), sum: 0.0, count: 0 }
    }
}

impl Curve {
    /// Adds the loss of the next step.
    pub fn push(&mut self, loss: f64) {
        self.sum += loss;
        self.count += 1;
        if self.count < self.every {
            return;
        }
        self.points.push(self.sum / self.every as f64);
        (self.sum, self.count) = (0.0, 0);
        if self.points.len() == POINTS_MAX {
            let (pairs, _) = self.points.as_chunks::<2>();
            self.points = pairs.iter().map(|[a, b]| (a + b) / 2.0).collect();
            self.every *= 2;
        }
    }

    /// The mean losses, oldest first.
    pub fn points(&self) -> &[f64] {
        &self.points
    }

    /// A picture of the losses up to `step`, the last one that was added, with held-out losses
    /// after steps as dots; without points it has no line.
    pub fn svg(&self, step: u64, held_out: &[(u64, f64)]) -> String {
        let last = step - self.count.min(step);
        let first = last - (self.points.len() as u64 * self.every).min(last) + 1;
        let held_out = held_out.iter().filter(|(step, _)| (first..=last).contains(step));
        let losses = || self.points.iter().chain(held_out.clone().map(|(_, loss)| loss)).copied();
        let fold = |start, pick: fn(f64, f64) -> f64| losses().fold(start, pick);
        let (low, high) = (fold(f64::INFINITY, f64::min), fold(f64::NEG_INFINITY, f64::max));
        let range = if high > low { high - low } else { 1.0 };
        let (right, bottom) = (WIDTH - MARGIN, HEIGHT - BELOW);
        let spacing = (right - LEFT) / (self.points.len().max(2) - 1) as f64;
        let height = |loss: f64| bottom - (loss - low) / range * (bottom - MARGIN);
        let (mut line, mut dots) = (String::new(), String::new());
        for (index, loss) in self.points.iter().enumerate() {
            let _ = write!(line, "{:.1},{:.1} ", LEFT + spacing * index as f64, height(*loss));
        }
        for (step, loss) in held_out {
            let index = (step - first) as f64 / self.every as f64;
            let (x, y) = (LEFT + spacing * index, height(*loss));
            let _ = write!(
                dots,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"#dc2626\">\
                 <title>held-out loss after step {step}: {loss:.4}</title></circle>"
            );
        }
        let label = |x: f64, y: f64, anchor: &str, text: String| {
            format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>")
        };
        let mut labels = label(LEFT, HEIGHT - 6.0, "start", format!("step {first}"));
        labels += &label(right, HEIGHT - 6.0, "end", format!("step {last}"));
        if high.is_finite() {
            labels += &label(LEFT - 6.0, MARGIN + 8.0, "end", format!("{high:.3}"));
            labels += &label(LEFT - 6.0, bottom, "end", format!("{low:.3}"));
        }
        if !dots.is_empty() {
            let told = "line: training, dots: held out".to_owned();
            labels += &label(right, MARGIN + 8.0, "end", told);
        }
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" font-family=\"sans-serif\" \
             font-size=\"12\" fill=\"#555\"><title>training loss, steps {first} to {last}</title>\
             <path d=\"M{LEFT} {MARGIN}V{bottom}H{right}\" fill=\"none\" stroke=\"#999\"/>{labels}\
             <polyline points=\"{}\" fill=\"none\" stroke=\"#2563eb\" stroke-width=\"1.5\"/>{dots}\
             </svg>",
            line.trim_end()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_keeps_its_mean_and_its_bound() {
        let mut curve = Curve::default();
        (0..4096).for_each(|step| curve.push(f64::from(step)));
        assert!(curve.points().len() < POINTS_MAX && curve.points().len() >= POINTS_MAX / 2);
        let mean = curve.points().iter().sum::<f64>() / curve.points().len() as f64;
        assert_eq!(mean, 4095.0 / 2.0);
        assert!(curve.points().is_sorted());
    }

    #[test]
    fn a_picture_spans_all_steps_and_all_losses() {
        let mut curve = Curve::default();
        [3.0, 1.0, 2.0].into_iter().for_each(|loss| curve.push(loss));
        let svg = curve.svg(3, &[]);
        assert!(svg.contains("points=\"56.0,12.0 342.0,216.0 628.0,114.0\""), "{svg}");
        assert!(svg.contains(">step 1<") && svg.contains(">step 3<"), "{svg}");
        assert!(svg.contains(">3.000<") && svg.contains(">1.000<"), "{svg}");
        let svg = curve.svg(3, &[(2, 1.5), (9, 7.0)]);
        assert!(svg.contains("<circle cx=\"342.0\" cy=\"165.0\""), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 1, "the other one is of no step: {svg}");
        assert!(Curve::default().svg(0, &[]).contains("points=\"\""));
    }
}
