//! Predictions beside measurements, and how far apart they are.

use std::collections::BTreeMap;

use het_perf::training::{DeviceFigures, Efficiency, Machine, StepTime, step_time};

use super::{Setup, TrainingRun};

/// A run with what the model says of it.
#[derive(Debug, Clone)]
pub struct Prediction<'a> {
    pub run: &'a TrainingRun,
    pub setup: &'a Setup,
    pub time: StepTime,
}

/// How good the predictions of some runs are. Fractions; `None` where there is nothing to tell.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// `all` for all of them.
    pub source: String,
    /// `None` for all models of a source.
    pub model: Option<String>,
    /// Runs that were predicted.
    pub rows: usize,
    /// Runs that do not print enough, or of a device without figures.
    pub skipped: usize,
    /// Mean and median of |predicted / measured − 1|.
    pub mape: Option<f64>,
    pub median_ape: Option<f64>,
    /// Rank correlation of a model's runs; of several models the median.
    pub spearman: Option<f64>,
    /// What the run predicted fastest takes more than the fastest, among runs of a model that do
    /// the same work on as many devices; of several such choices the mean.
    pub top1_regret: Option<f64>,
}

/// Predicts every run that can be, in order.
pub fn predict<'a>(
    runs: &'a [TrainingRun],
    figures: impl Fn(&str) -> Option<DeviceFigures>,
) -> Vec<Prediction<'a>> {
    let predicted = runs.iter().filter_map(|run| {
        let setup = run.setup.as_ref()?;
        let efficiency = Efficiency::of_class(setup.class);
        let machine = Machine { device: figures(setup.class)?, island: setup.island, efficiency };
        let time = step_time(&setup.model, &setup.config, &machine).ok()?;
        Some(Prediction { run, setup, time })
    });
    predicted.collect()
}

/// One item a model of each source, one a source, one for all; in that order, by name.
pub fn score(runs: &[TrainingRun], predictions: &[Prediction<'_>]) -> Vec<Score> {
    let mut groups: BTreeMap<(&str, &str), (Vec<&Prediction<'_>>, usize)> = BTreeMap::new();
    for run in runs {
        groups.entry((&run.source, &run.model)).or_default().1 += 1;
    }
    for prediction in predictions {
        let key = (prediction.run.source.as_str(), prediction.run.model.as_str());
        groups.entry(key).or_default().0.push(prediction);
    }
    let of_model = |(key, group): (&(&str, &str), &(Vec<&Prediction<'_>>, usize))| {
        let (predictions, runs) = group;
        let choices = choices(predictions);
        Score {
            source: key.0.to_owned(),
            model: Some(key.1.to_owned()),
            spearman: spearman(predictions),
            top1_regret: mean(&choices),
            ..errors(predictions, *runs)
        }
    };
    let mut scores: Vec<Score> = groups.iter().map(of_model).collect();
    let mut sources: Vec<&str> = groups.keys().map(|(source, _)| *source).collect();
    sources.dedup();
    let several = |name: &str, within: &dyn Fn(&str) -> bool| {
        let members = || groups.iter().filter(|((source, _), _)| within(source));
        let all: Vec<&Prediction<'_>> =
            members().flat_map(|(_, (predictions, _))| predictions.iter().copied()).collect();
        let ranks: Vec<f64> = members().filter_map(|(_, (group, _))| spearman(group)).collect();
        let choices: Vec<f64> = members().flat_map(|(_, (group, _))| choices(group)).collect();
        Score {
            source: name.to_owned(),
            spearman: median(&ranks),
            top1_regret: mean(&choices),
            ..errors(&all, members().map(|(_, (_, runs))| runs).sum())
        }
    };
    let of_sources: Vec<Score> =
        sources.iter().map(|name| several(name, &|source| source == *name)).collect();
    scores.extend(of_sources);
    scores.push(several("all", &|_| true));
    scores
}

/// Relative errors of some predictions among so many runs.
fn errors(predictions: &[&Prediction<'_>], runs: usize) -> Score {
    let error = |prediction: &&Prediction<'_>| {
        (prediction.time.total_s / prediction.setup.seconds - 1.0).abs()
    };
    let errors: Vec<f64> = predictions.iter().map(error).collect();
    Score {
        source: String::new(),
        model: None,
        rows: predictions.len(),
        skipped: runs - predictions.len(),
        mape: mean(&errors),
        median_ape: median(&errors),
        spearman: None,
        top1_regret: None,
    }
}

/// What each choice between runs of a model cost: samples, their length and devices are given, the
/// cut is chosen.
fn choices(predictions: &[&Prediction<'_>]) -> Vec<f64> {
    let mut sets: BTreeMap<_, Vec<&Prediction<'_>>> = BTreeMap::new();
    for prediction in predictions {
        let Setup { model, config, class, .. } = prediction.setup;
        let work = (class, config.devices(), config.global_batch, model.sequence);
        sets.entry(work).or_default().push(prediction);
    }
    let regret = |set: &Vec<&Prediction<'_>>| {
        let picked = set.iter().min_by(|a, b| a.time.total_s.total_cmp(&b.time.total_s))?;
        let fastest = set.iter().map(|one| one.setup.seconds).fold(f64::INFINITY, f64::min);
        Some(picked.setup.seconds / fastest - 1.0)
    };
    sets.values().filter(|set| set.len() > 1).filter_map(regret).collect()
}

/// Spearman's rank correlation, equal values sharing their mean rank; `None` of fewer than two.
fn spearman(predictions: &[&Prediction<'_>]) -> Option<f64> {
    let predicted: Vec<f64> = predictions.iter().map(|one| one.time.total_s).collect();
    let measured: Vec<f64> = predictions.iter().map(|one| one.setup.seconds).collect();
    correlation(&ranks(&predicted), &ranks(&measured))
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let below = values.iter().filter(|other| *other < value).count();
        let equal = values.iter().filter(|other| *other == value).count();
        below as f64 + (equal as f64 - 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

/// Pearson's.
fn correlation(a: &[f64], b: &[f64]) -> Option<f64> {
    let (mean_a, mean_b) = (mean(a)?, mean(b)?);
    let moment = |x: &[f64], mean_x: f64, y: &[f64], mean_y: f64| -> f64 {
        x.iter().zip(y).map(|(x, y)| (x - mean_x) * (y - mean_y)).sum()
    };
    let spread = moment(a, mean_a, a, mean_a) * moment(b, mean_b, b, mean_b);
    (spread > 0.0).then(|| moment(a, mean_a, b, mean_b) / spread.sqrt())
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2)?;
    let lower = sorted.get((sorted.len() - 1) / 2)?;
    Some((lower + upper) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_correlate_as_spearman_says() {
        let check = |a: &[f64], b: &[f64], expected: Option<f64>| {
            let found = correlation(&ranks(a), &ranks(b));
            assert_eq!(found.map(|value| (value * 1e6).round() / 1e6), expected);
        };
        check(&[1.0, 2.0, 3.0], &[10.0, 30.0, 90.0], Some(1.0));
        check(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0], Some(-1.0));
        check(&[1.0, 2.0, 3.0, 4.0], &[1.0, 3.0, 2.0, 4.0], Some(0.8));
        check(&[1.0], &[1.0], None);
        check(&[1.0, 1.0, 2.0], &[1.0, 1.0, 2.0], Some(1.0));
    }

    #[test]
    fn the_median_lies_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
