//! `het sim`: the same scheduling code in virtual time.

mod scenario;

use std::path::{Path, PathBuf};

use anstream::{eprintln, println};
use clap::{Args, Subcommand};
use het_lab::report::{self, PolicyRuns, Spread};
use het_lab::workload::read_pods;
use het_lab::{
    Bound, Completions, Outcome, PACKING_SEED, Recording, Scenario, pack, record, simulate,
};
use het_policy::packing::PackingRule;
use het_policy::{POLICIES, Policy};
use het_wire::text::{self, Lang};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use self::scenario::{ScenarioArgs, read, read_recorded};
use crate::cluster::cluster;
use crate::fail::{Fail, code};
use crate::output::{self, Column, Form, Shown};
use crate::scheduling::policy_named;
use crate::workload::unusable;

/// Columns of a comparison; nested figures are flattened for it.
const COLUMNS: &[Column] = &[
    Column("POLICY", "policy", Shown::Always),
    Column("DONE", "jobs_done", Shown::Always),
    Column("AVG_JCT_S", "avg_jct_s", Shown::Always),
    Column("P50_JCT_S", "p50_jct_s", Shown::Wide),
    Column("P99_JCT_S", "p99_jct_s", Shown::Always),
    Column("MAKESPAN_S", "makespan_s", Shown::Always),
    Column("ALLOCATED", "allocated", Shown::Wide),
    Column("BUSY", "busy", Shown::Always),
    Column("USEFUL", "useful", Shown::Wide),
    Column("ENERGY_KWH", "energy_kwh", Shown::Wide),
    Column("WORST_FTF", "worst_finish_time_fairness", Shown::Always),
    Column("PRICE", "price", Shown::Wide),
    Column("RECLAIMED", "reclaims", Shown::Wide),
    Column("SUSPENDED", "suspensions", Shown::Always),
    Column("MIGRATED", "migrations", Shown::Always),
    Column("DECISIONS", "decisions", Shown::Wide),
    Column("WALL_S", "wall_s", Shown::Wide),
];

#[derive(Debug, Args)]
pub struct SimArgs {
    #[command(subcommand)]
    pub what: SimCommand,
}

#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Play one policy.
    Run {
        #[command(flatten)]
        scenario: ScenarioArgs,
        /// Scheduling policy.
        #[arg(long, default_value = "adaptive")]
        policy: String,
        /// Also say what no schedule can beat: mean completion time and makespan.
        #[arg(long)]
        bound: bool,
        #[arg(short, long, value_enum, default_value_t = Form::Table)]
        output: Form,
    },
    /// Fill a cluster with pods that never leave, and say how much of its accelerators is allocated
    /// when as much was asked for as there is.
    Pack {
        /// As for `sim run`; nodes need cores, as in `alibaba-openb:NODES.csv`.
        #[arg(long, value_name = "CLUSTER")]
        cluster: String,
        /// Pod list in the format of Alibaba's 2023 GPU cluster.
        #[arg(long, value_name = "FILE")]
        pods: PathBuf,
        /// `adaptive`, `fgd`, `best-fit` or `random`; all of them where none is named.
        #[arg(long, value_delimiter = ',')]
        policy: Vec<String>,
        /// Runs, each with its own order of pods.
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
        seeds: u64,
        #[arg(short, long, value_enum, default_value_t = Form::Table)]
        output: Form,
    },
    /// Play several policies on the same scenario, one row each.
    Compare {
        #[command(flatten)]
        scenario: ScenarioArgs,
        /// Policies, or all of them where none is named.
        #[arg(long, value_delimiter = ',')]
        policies: Vec<String>,
        /// Runs of each policy, with seeds counting up from `--seed`; figures are means then.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000))]
        seeds: u64,
        /// Folder for a report: `index.html`, `results.csv`, and `trace.json` for Perfetto.
        #[arg(long, value_name = "FOLDER")]
        report: Option<PathBuf>,
        /// A row more, `lower-bound`: what no schedule can beat.
        #[arg(long)]
        bound: bool,
        #[arg(short, long, value_enum, default_value_t = Form::Table)]
        output: Form,
    },
    /// Say why a job landed where and when it did under each policy.
    Explain {
        /// Number of the job, in the order of arrival from 1.
        job: u64,
        #[command(flatten)]
        scenario: ScenarioArgs,
        /// Policies to explain.
        #[arg(long, value_delimiter = ',', default_value = "adaptive")]
        policies: Vec<String>,
        #[arg(short, long, value_enum, default_value_t = Form::Table)]
        output: Form,
    },
}

pub fn sim(args: &SimArgs) -> Result<u8, Fail> {
    match &args.what {
        SimCommand::Run { scenario, policy, bound, output } => {
            let policy = policy_named(policy)?;
            let (scenario, recorded) = read_recorded(scenario, scenario.seed)?;
            let outcome = play(&scenario, policy)?;
            let bound = bound.then(|| Bound::of(&scenario)).flatten();
            let mut value = json(&outcome);
            if let Some(bound) = bound {
                value["bound"] = serde_json::to_value(bound).unwrap_or_default();
            }
            if let Some(recorded) = recorded {
                value["recorded"] = serde_json::to_value(recorded).unwrap_or_default();
            }
            output::object(&value, *output, || {
                tell(&outcome, bound);
                recorded.iter().for_each(tell_recorded);
            });
        }
        SimCommand::Compare { scenario, policies, seeds, report, bound, output } => {
            let scenarios = (scenario.seed..scenario.seed + seeds).map(|seed| read(scenario, seed));
            let scenarios: Vec<Scenario> = scenarios.collect::<Result<_, _>>()?;
            let rows = match report {
                Some(folder) => reported(scenario, &scenarios, policies, folder)?,
                None => compared(&scenarios, policies, play)?,
            };
            let mut items: Vec<Value> = rows.iter().map(|outcomes| row(outcomes)).collect();
            if *bound {
                items.extend(bound_row(&scenarios));
            }
            output::list("SimulationList", &items, COLUMNS, *output);
            rows.iter()
                .filter_map(|outcomes| never_done(outcomes))
                .for_each(|told| eprintln!("! {told}"));
        }
        SimCommand::Explain { job, scenario, policies, output } => {
            let rows = explained(*job, scenario, policies)?;
            output::list("DecisionList", &rows, DECISION_COLUMNS, *output);
        }
        SimCommand::Pack { cluster, pods, policy, seeds, output } => {
            let rows = packed(cluster, pods, policy, *seeds)?;
            output::list("PackingList", &rows, PACKING_COLUMNS, *output);
        }
    }
    Ok(code::OK)
}

/// What is to be said of a policy that leaves jobs for ever: its means are over fewer jobs.
fn never_done(outcomes: &[Outcome]) -> Option<String> {
    let first = outcomes.first()?;
    let left: usize = outcomes.iter().map(|outcome| outcome.jobs_total - outcome.jobs_done).sum();
    (left > 0).then(|| {
        format!(
            "under `{}` {left} jobs never end: what they ask for is never there, or their tenant \
             may not have it; means are over the others",
            first.policy
        )
    })
}

const PACKING_COLUMNS: &[Column] = &[
    Column("POLICY", "policy", Shown::Always),
    Column("PODS", "pods_file", Shown::Always),
    Column("GPU_ALLOC_PCT", "gpu_alloc_pct", Shown::Always),
    Column("SEEDS", "seeds", Shown::Always),
];

/// Mean over the seeds of what each policy allocates, in percent.
fn packed(word: &str, pods: &Path, policies: &[String], seeds: u64) -> Result<Vec<Value>, Fail> {
    let topology = cluster(word)?.topology;
    let items = read_pods(pods, &topology).map_err(|error| unusable(&error))?;
    let known = |name: &String| {
        PackingRule::ALL.into_iter().find(|rule| rule.name() == name).ok_or_else(|| {
            let names = PackingRule::ALL.map(PackingRule::name).join(", ");
            Fail::new(code::USAGE, format!("policy `{name}` does not pack"))
                .hint(format!("choose one of {names}"))
        })
    };
    let rules: Vec<PackingRule> = match policies {
        [] => PackingRule::ALL.to_vec(),
        names => names.iter().map(known).collect::<Result<_, _>>()?,
    };
    let bar = ProgressBar::new(rules.len() as u64 * seeds).with_style(style());
    let rows = rules.into_iter().map(|rule| {
        bar.set_message(rule.name());
        let parts = (PACKING_SEED..PACKING_SEED + seeds).map(|seed| {
            bar.inc(1);
            pack(&topology, &items, rule, seed)
        });
        let percent = parts.sum::<f64>() / seeds as f64 * 100.0;
        let file = pods.file_stem().unwrap_or_default().to_string_lossy();
        json!({
            "policy": rule.name(),
            "pods_file": file,
            "gpu_alloc_pct": (percent * 1e3).round() / 1e3,
            "seeds": seeds,
        })
    });
    let rows = rows.collect();
    bar.finish_and_clear();
    Ok(rows)
}

fn style() -> ProgressStyle {
    let template = "{bar:30} {pos}/{len} {msg} · {eta} left";
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Outcomes of every policy with every seed; the first seed of each is played by `first`.
fn compared(
    scenarios: &[Scenario],
    names: &[String],
    mut first: impl FnMut(&Scenario, &'static dyn Policy) -> Result<Outcome, Fail>,
) -> Result<Vec<Vec<Outcome>>, Fail> {
    let policies = chosen(names)?;
    let runs = policies.len() * scenarios.len();
    let bar = ProgressBar::new(runs as u64).with_style(style());
    let mut rows = Vec::with_capacity(policies.len());
    for policy in policies {
        bar.set_message(policy.name());
        let mut outcomes = vec![first(&scenarios[0], policy)?];
        bar.inc(1);
        for scenario in &scenarios[1..] {
            outcomes.push(play(scenario, policy)?);
            bar.inc(1);
        }
        rows.push(outcomes);
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// The same, with a report of them in `folder`; what happened is kept of the first seed.
fn reported(
    args: &ScenarioArgs,
    scenarios: &[Scenario],
    names: &[String],
    folder: &Path,
) -> Result<Vec<Vec<Outcome>>, Fail> {
    let mut recordings = Vec::new();
    let rows = compared(scenarios, names, |scenario, policy| {
        let recording = keep(scenario, policy)?;
        let outcome = recording.outcome.clone();
        recordings.push(recording);
        Ok(outcome)
    })?;
    let runs = recordings.into_iter().zip(&rows);
    let runs: Vec<PolicyRuns> = runs
        .map(|(recording, outcomes)| PolicyRuns { recording, outcomes: outcomes.clone() })
        .collect();
    let workload = args.trace.as_ref().or(args.from_log.as_ref());
    let workload = workload.and_then(|path| path.file_name()).unwrap_or_default();
    let topology = &scenarios[0].topology;
    let of_log = || topology.nodes.iter().map(|node| node.name.to_string()).collect::<Vec<_>>();
    let place = args.cluster.clone().unwrap_or_else(|| of_log().join(", "));
    let lang = lang();
    let title = text::fill(text::report_words(lang).title, &[&workload.to_string_lossy(), &place]);
    report::write(folder, &title, lang, topology, &runs)
        .map_err(|error| Fail::file(&error.path, error.source))?;
    eprintln!("report in `{}`", folder.join("index.html").display());
    Ok(rows)
}

/// The figures of a policy, means where it ran several times.
fn row(outcomes: &[Outcome]) -> Value {
    let rows: Vec<Value> = outcomes.iter().map(|outcome| flat(&json(outcome))).collect();
    let mut mean = rows[0].clone();
    let fields = mean.as_object_mut().into_iter().flatten();
    for (name, field) in fields.filter(|(_, field)| field.is_number()) {
        if name != "seed" && rows.len() > 1 {
            let values = rows.iter().filter_map(|row| row[name].as_f64());
            *field = ((Spread::of(values).mean * 1e3).round() / 1e3).into();
        }
    }
    if rows.len() > 1 {
        mean["seeds"] = rows.len().into();
    }
    mean
}

/// What no policy can beat, as a row beside theirs; none for an empty trace.
fn bound_row(scenarios: &[Scenario]) -> Option<Value> {
    let bounds: Vec<Bound> = scenarios.iter().map(Bound::of).collect::<Option<_>>()?;
    let mean = |of: fn(&Bound) -> f64| Spread::of(bounds.iter().map(of)).mean;
    let value = json!({
        "policy": "lower-bound",
        "avg_jct_s": mean(|bound| bound.avg_jct_s),
        "makespan_s": mean(|bound| bound.makespan_s),
    });
    Some(flat(&value))
}

fn lang() -> Lang {
    Lang::find(|name| std::env::var(name).ok())
}

const DECISION_COLUMNS: &[Column] = &[
    Column("POLICY", "policy", Shown::Always),
    Column("AT_S", "at_s", Shown::Always),
    Column("STAGE", "stage", Shown::Always),
    Column("DECISION", "decision", Shown::Always),
];

/// Everything that was decided about a job.
fn explained(job: u64, args: &ScenarioArgs, names: &[String]) -> Result<Vec<Value>, Fail> {
    let scenario = read(args, args.seed)?;
    if job == 0 || job > scenario.jobs.len() as u64 {
        let message = format!("there is no job {job}");
        return Err(Fail::new(code::NOT_FOUND, message)
            .hint(format!("the trace has jobs 1 to {}", scenario.jobs.len())));
    }
    let lang = lang();
    let mut rows = Vec::new();
    for policy in chosen(names)? {
        let recording = keep(&scenario, policy)?;
        let ours = recording.decisions.iter().filter(|decided| decided.stage.job.0 == job);
        rows.extend(ours.map(|decided| {
            json!({
                "policy": policy.name(),
                "at_s": decided.at.0 as f64 / 1e3,
                "stage": decided.stage.to_string(),
                "decision": report::sentence(&scenario.topology, lang, &decided.what),
            })
        }));
    }
    Ok(rows)
}

fn chosen(names: &[String]) -> Result<Vec<&'static dyn Policy>, Fail> {
    if names.is_empty() {
        return Ok(POLICIES.to_vec());
    }
    names.iter().map(|name| policy_named(name)).collect()
}

fn play(scenario: &Scenario, policy: &'static dyn Policy) -> Result<Outcome, Fail> {
    simulate(scenario, policy).map_err(|error| Fail::new(code::FAILED, error.to_string()))
}

/// The same, with everything that happened.
fn keep(scenario: &Scenario, policy: &'static dyn Policy) -> Result<Recording, Fail> {
    record(scenario, policy).map_err(|error| Fail::new(code::FAILED, error.to_string()))
}

fn json(outcome: &Outcome) -> Value {
    serde_json::to_value(outcome).unwrap_or_default()
}

/// Nested figures beside the others, rounded for people, so that a table can show them.
fn flat(value: &Value) -> Value {
    let mut row = value.clone();
    row["allocated"] = value["utilisation"]["allocated"].clone();
    row["busy"] = value["utilisation"]["busy"].clone();
    row["useful"] = value["utilisation"]["useful"].clone();
    row["worst_finish_time_fairness"] = value["finish_time_fairness"]["worst"].clone();
    let fields = row.as_object_mut().into_iter().flatten();
    for (name, field) in fields {
        if let Some(number) = field.as_f64().filter(|_| field.is_f64()) {
            let digits = if name.ends_with("jct_s") || name == "makespan_s" { 1.0 } else { 1e3 };
            *field = ((number * digits).round() / digits).into();
        }
    }
    row
}

fn tell_recorded(recorded: &Completions) {
    let Completions { jobs_done, avg_jct_s, makespan_s } = recorded;
    println!(
        "  recorded: {jobs_done} jobs done · mean completion {avg_jct_s:.0} s · makespan \
         {makespan_s:.0} s"
    );
}

fn tell(outcome: &Outcome, bound: Option<Bound>) {
    println!(
        "{} · {} of {} jobs done · mean completion {:.0} s, p50 {:.0} s, p99 {:.0} s · makespan \
         {:.0} s",
        outcome.policy,
        outcome.jobs_done,
        outcome.jobs_total,
        outcome.avg_jct_s,
        outcome.p50_jct_s,
        outcome.p99_jct_s,
        outcome.makespan_s
    );
    println!(
        "  devices allocated {:.0} %, busy {:.0} %, useful {:.0} % · {} preemptions, {} \
         suspensions, {} migrations · worst finish-time fairness {:.2}",
        outcome.utilisation.allocated * 100.0,
        outcome.utilisation.busy * 100.0,
        outcome.utilisation.useful * 100.0,
        outcome.preemptions,
        outcome.suspensions,
        outcome.migrations,
        outcome.finish_time_fairness.worst
    );
    println!(
        "  {} decisions, p50 {:.2} ms, p99 {:.2} ms · {:.2} s of real time",
        outcome.decisions, outcome.decision_p50_ms, outcome.decision_p99_ms, outcome.wall_s
    );
    if let Some(Bound { avg_jct_s, makespan_s }) = bound {
        println!(
            "  no schedule has a mean completion below {avg_jct_s:.0} s ({:.2} of it here) or a \
             makespan below {makespan_s:.0} s ({:.2})",
            outcome.avg_jct_s / avg_jct_s,
            outcome.makespan_s / makespan_s
        );
    }
}
