//! Linear programs over shares of time, solved by an interior-point method, as the published
//! policies are: among equal optima it lands in the middle, where a simplex would take a corner.

use std::collections::BTreeMap;

use clarabel::algebra::CscMatrix;
use clarabel::solver::{DefaultSettings, DefaultSolver, IPSolver, SolverStatus, SupportedConeT};

use het_core::StageKey;

use crate::market::Demands;

/// Shares of time by class.
pub(crate) type SharesByStage = BTreeMap<StageKey, Vec<f64>>;

/// What is to be made large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal {
    /// The least value of any stage.
    RaiseLeast,
    /// The sum of the values of all stages.
    RaiseSum,
    /// Nothing: any shares within the bounds.
    Any,
}

/// Shares x of every stage on each of its offers: x ≥ 0, Σ x ≤ 1 a stage, Σ units · x ≤ capacity a
/// class, and bounds on each stage's value Σ value · x.
pub(crate) struct Program<'a> {
    demands: &'a Demands,
    goal: Goal,
    /// First variable of each stage.
    first: Vec<usize>,
    values: Vec<f64>,
    least: Vec<Option<f64>>,
}

impl<'a> Program<'a> {
    pub fn new(demands: &'a Demands, goal: Goal) -> Self {
        let mut first = vec![0];
        for demand in &demands.stages {
            first.push(first[first.len() - 1] + demand.offers.len());
        }
        let variables = first[first.len() - 1];
        let least = vec![None; demands.stages.len()];
        Self { demands, goal, first, values: vec![0.0; variables], least }
    }

    /// What a whole share of an offer is worth to a stage.
    pub fn value(&mut self, stage: usize, offer: usize, value: f64) {
        self.values[self.first[stage] + offer] = value;
    }

    /// The stage's value is to reach at least this.
    pub fn at_least(&mut self, stage: usize, value: f64) {
        self.least[stage] = Some(value);
    }

    /// Shares by class, or `None` if the bounds leave none.
    pub fn solve(&self) -> Option<SharesByStage> {
        let shares = self.values.len();
        let level = self.goal == Goal::RaiseLeast;
        let variables = shares + usize::from(level);
        let mut rows = Rows::default();
        for variable in 0..shares {
            rows.add([(variable, -1.0)], 0.0);
        }
        let classes = self.demands.capacity.len();
        let mut by_class: Vec<Vec<(usize, f64)>> = vec![Vec::new(); classes];
        for (stage, demand) in self.demands.stages.iter().enumerate() {
            let span = self.first[stage]..self.first[stage + 1];
            rows.add(span.clone().map(|variable| (variable, 1.0)), 1.0);
            for (variable, offer) in span.clone().zip(demand.offers.iter()) {
                by_class[offer.class].push((variable, f64::from(offer.units)));
            }
            let value = span.map(|variable| (variable, -self.values[variable]));
            if level {
                rows.add(value.chain([(shares, 1.0)]), 0.0);
            } else if let Some(least) = self.least[stage] {
                rows.add(value, -least);
            }
        }
        for (class, row) in by_class.into_iter().enumerate() {
            if !row.is_empty() {
                rows.add(row, f64::from(self.demands.capacity[class]));
            }
        }
        let mut cost = vec![0.0; variables];
        match self.goal {
            Goal::RaiseLeast => cost[shares] = -1.0,
            Goal::RaiseSum => cost.iter_mut().zip(&self.values).for_each(|(c, value)| *c = -value),
            Goal::Any => {}
        }
        rows.minimise(&cost).map(|solution| self.by_stage(&solution))
    }

    fn by_stage(&self, solution: &[f64]) -> SharesByStage {
        let stages = self.demands.stages.iter().enumerate();
        let rows = stages.map(|(stage, demand)| {
            let mut row = vec![0.0; self.demands.capacity.len()];
            for (index, offer) in demand.offers.iter().enumerate() {
                row[offer.class] += solution[self.first[stage] + index].clamp(0.0, 1.0);
            }
            (demand.key, row)
        });
        rows.collect()
    }
}

/// Rows of A x ≤ b.
#[derive(Default)]
struct Rows {
    entries: Vec<(usize, usize, f64)>,
    bounds: Vec<f64>,
}

impl Rows {
    fn add(&mut self, row: impl IntoIterator<Item = (usize, f64)>, bound: f64) {
        let index = self.bounds.len();
        self.entries.extend(row.into_iter().map(|(column, value)| (index, column, value)));
        self.bounds.push(bound);
    }

    /// The x with the least cost · x, or `None` if there is none.
    fn minimise(self, cost: &[f64]) -> Option<Vec<f64>> {
        let (rows, columns) = (self.bounds.len(), cost.len());
        let at = |part: fn(&(usize, usize, f64)) -> usize| self.entries.iter().map(part).collect();
        let values = self.entries.iter().map(|entry| entry.2).collect();
        let matrix = CscMatrix::new_from_triplets(
            rows,
            columns,
            at(|entry| entry.0),
            at(|entry| entry.1),
            values,
        );
        let settings = DefaultSettings { verbose: false, ..DefaultSettings::default() };
        let quadratic = CscMatrix::zeros((columns, columns));
        let cones = [SupportedConeT::NonnegativeConeT(rows)];
        let mut solver =
            DefaultSolver::new(&quadratic, cost, &matrix, &self.bounds, &cones, settings).ok()?;
        solver.solve();
        let solved =
            matches!(solver.solution.status, SolverStatus::Solved | SolverStatus::AlmostSolved);
        solved.then(|| solver.solution.x.clone())
    }
}
