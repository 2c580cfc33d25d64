//! What no schedule of the tasks that are there can beat, by the model's means and without
//! transfers.

use std::cmp::Ordering;

use crate::{ClassId, TaskId, View};

/// Nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Bounds {
    /// Every task on the class that has it fastest, spread over all devices.
    pub area: f64,
    /// The longest path, every task on the class that has it fastest.
    pub critical_path: f64,
    /// The linear program over what kinds of tasks each class does: the least T with
    /// `Σ over kinds of share · duration ≤ T · devices` for every class, all tasks done. Its dual
    /// is solved, any point of which is a bound.
    pub assignment: f64,
}

impl Bounds {
    /// Of all tasks that have not ended.
    pub fn of(view: &View<'_>) -> Self {
        let classes = view.machine.classes().len();
        let mut counts = vec![0.0; classes];
        for device in view.devices() {
            counts[view.machine.class_of(device).row()] += 1.0;
        }
        let mut tasks: Vec<(u64, TaskId)> =
            view.graph.tasks().map(|(id, node)| (node.sequence(), id)).collect();
        tasks.sort_unstable();
        let mut durations = Vec::with_capacity(tasks.len());
        for (_, id) in &tasks {
            let of = |class: usize| {
                let node = view.task(*id)?;
                let has = counts[class] > 0.0 && node.classes >> class & 1 == 1;
                let known = view.model.estimate(node.row, ClassId(class as u16));
                known.filter(|_| has).map(|estimate| estimate.mean)
            };
            let row: Vec<f64> =
                (0..classes).map(|class| of(class).unwrap_or(f64::INFINITY)).collect();
            durations.push(row);
        }
        let least = |row: &Vec<f64>| {
            let least = row.iter().copied().fold(f64::INFINITY, f64::min);
            if least.is_finite() { least } else { 0.0 }
        };
        let least: Vec<f64> = durations.iter().map(least).collect();
        let devices: f64 = counts.iter().sum();
        Self {
            area: least.iter().sum::<f64>() / devices.max(1.0),
            critical_path: critical_path(view, &tasks, &least),
            assignment: assignment(&durations, &counts),
        }
    }

    /// The greatest of them.
    pub fn most(&self) -> f64 {
        self.area.max(self.critical_path).max(self.assignment)
    }
}

fn critical_path(view: &View<'_>, tasks: &[(u64, TaskId)], least: &[f64]) -> f64 {
    let mut places = vec![usize::MAX; view.graph.rows()];
    for (place, (_, id)) in tasks.iter().enumerate() {
        places[id.row()] = place;
    }
    let mut onward = vec![0.0_f64; tasks.len()];
    for (place, (_, id)) in tasks.iter().enumerate().rev() {
        let later = view.graph.successors(*id).map(|task| onward[places[task.row()]]);
        onward[place] = least[place] + later.fold(0.0, f64::max);
    }
    onward.into_iter().fold(0.0, f64::max)
}

/// Steps by which the weights of classes near the best ones.
const STEPS: usize = 300;

/// Steps of a search along a line.
const LINE_STEPS: usize = 60;

/// The most of `Σ over tasks of min over classes of duration · w` over all w ≥ 0 with
/// `Σ devices · w = 1`, which is concave in w: exponentiated gradients (Kivinen and Warmuth 1997)
/// come near it from anywhere, and shifting weight between two classes at a time does the rest.
fn assignment(durations: &[Vec<f64>], counts: &[f64]) -> f64 {
    let used: Vec<usize> = (0..counts.len()).filter(|class| counts[*class] > 0.0).collect();
    let kinds = kinds(durations, &used);
    let devices: f64 = counts.iter().sum();
    let mut weights: Vec<f64> =
        counts.iter().map(|count| if *count > 0.0 { 1.0 / devices } else { 0.0 }).collect();
    let (mut best, mut best_weights) = (0.0, weights.clone());
    for step in 1..=STEPS {
        let mut loads = vec![0.0; counts.len()];
        let mut value = 0.0;
        for (row, count) in &kinds {
            let cost = |class: &usize| row[*class] * weights[*class];
            let Some(class) = used.iter().min_by(|a, b| cost(a).total_cmp(&cost(b))) else { break };
            value += count * cost(class);
            loads[*class] += count * row[*class];
        }
        if value > best {
            best = value;
            best_weights.clone_from(&weights);
        }
        // The part of the whole time that each device would compute.
        let per_device = used.iter().map(|class| loads[*class] / counts[*class]);
        let most = per_device.fold(f64::MIN_POSITIVE, f64::max);
        let rate = 1.0 / (step as f64).sqrt();
        for class in &used {
            weights[*class] *= (rate * loads[*class] / counts[*class] / most).exp();
        }
        let sum: f64 = used.iter().map(|class| counts[*class] * weights[*class]).sum();
        used.iter().for_each(|class| weights[*class] /= sum);
    }
    along_lines(&kinds, (counts, &used), best_weights).max(best)
}

/// Rows of durations and how many tasks have each; a task that no class runs has none.
fn kinds<'a>(durations: &'a [Vec<f64>], used: &[usize]) -> Vec<(&'a [f64], f64)> {
    let has_class = |row: &&Vec<f64>| used.iter().any(|class| row[*class].is_finite());
    let mut rows: Vec<&[f64]> = durations.iter().filter(has_class).map(Vec::as_slice).collect();
    let by_place = |a: &[f64], b: &[f64]| {
        let pairs = a.iter().zip(b).map(|(a, b)| a.total_cmp(b));
        pairs.fold(Ordering::Equal, Ordering::then)
    };
    rows.sort_by(|a, b| by_place(a, b));
    let alike = rows.chunk_by(|a, b| by_place(a, b).is_eq());
    alike.map(|kind| (kind[0], kind.len() as f64)).collect()
}

/// The value after weight was shifted between two classes at a time, each time by the golden
/// section.
fn along_lines(
    kinds: &[(&[f64], f64)],
    (counts, used): (&[f64], &[usize]),
    mut weights: Vec<f64>,
) -> f64 {
    let value = |weights: &[f64]| -> f64 {
        let cost = |row: &[f64]| {
            let costs = used.iter().map(|class| (row[*class], weights[*class]));
            let able = costs.filter(|(duration, _)| duration.is_finite());
            able.map(|(duration, weight)| duration * weight).fold(f64::INFINITY, f64::min)
        };
        kinds.iter().map(|(row, count)| count * cost(row)).sum()
    };
    let mut best = value(&weights);
    for (row, a) in used.iter().copied().enumerate() {
        for b in used[row + 1..].iter().copied() {
            let whole = weights[a] * counts[a] + weights[b] * counts[b];
            let shifted = |part: f64| {
                let mut weights = weights.clone();
                weights[a] = whole * part / counts[a];
                weights[b] = whole * (1.0 - part) / counts[b];
                weights
            };
            let (mut low, mut high) = (0.0, 1.0);
            for _ in 0..LINE_STEPS {
                let (left, right) = (high - 0.618 * (high - low), low + 0.618 * (high - low));
                match value(&shifted(left)) < value(&shifted(right)) {
                    true => low = left,
                    false => high = right,
                }
            }
            let found = shifted(f64::midpoint(low, high));
            if value(&found) > best {
                best = value(&found);
                weights = found;
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_assignment_bound_is_that_of_the_linear_program() {
        // Ten tasks of a kind that a CPU does in 4 and a GPU in 1, with one of each: shares x on
        // the CPU with 4x = 10 − x, so that T = 8.
        let durations = vec![vec![4.0, 1.0]; 10];
        assert!((assignment(&durations, &[1.0, 1.0]) - 8.0).abs() < 1e-6);
        // Two kinds, each best on another class: 9x + 6 = 2T and 6 − x = T, where x of the second
        // go to the two devices of the first class.
        let durations = [vec![vec![1.0, 9.0]; 6], vec![vec![9.0, 1.0]; 6]].concat();
        assert!((assignment(&durations, &[2.0, 1.0]) - 60.0 / 11.0).abs() < 1e-3);
        // Three classes of which each does all in proportion to its speed: no two of them alone
        // have the weights.
        let durations = vec![vec![8.0, 1.0, 4.0]; 67];
        let found = assignment(&durations, &[1.0, 8.0, 1.0]);
        assert!((found - 8.0).abs() < 0.02 && found <= 8.0 + 1e-9, "{found}");
    }
}
