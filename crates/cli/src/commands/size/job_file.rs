//! A chosen cut as a job file, in the words of a launcher; what only the user knows is left to add.

use std::path::Path;

use anstream::eprintln;
use het_parallel::{Candidate, Ranking, Request, known_model};
use het_planner::Launcher;
use het_wire::yaml;
use serde_json::{Map, Value, json};

use super::SizeArgs;
use super::labels::cut;
use crate::fail::{Fail, code};

/// Writes candidate `number`, from 1, to the file that `-o` names.
pub fn write(
    args: &SizeArgs,
    request: &Request,
    ranking: &Ranking,
    number: usize,
) -> Result<u8, Fail> {
    let Some(candidate) = number.checked_sub(1).and_then(|row| ranking.candidates.get(row)) else {
        let text = format!("there is no candidate {number}");
        return Err(Fail::new(code::USAGE, text)
            .hint(format!("they are numbered from 1 to {}", ranking.candidates.len())));
    };
    let path = Path::new(&args.output);
    if path.extension().is_none() {
        return Err(
            Fail::new(code::USAGE, "`--pick` writes a job file").hint("name it: `-o job.yaml`")
        );
    }
    let launcher = Launcher::of(request, candidate).map_err(|lacks| {
        let text = format!("no launcher runs candidate {number} as it is: {lacks}");
        Fail::new(code::USAGE, text).hint(other(request, ranking))
    })?;
    let name = args.model.as_deref().unwrap_or("job");
    let text = yaml::to_text(&job(request, candidate, launcher, name));
    std::fs::write(path, text).map_err(|error| Fail::file(path, error))?;
    let cut = cut(candidate.layout.config());
    eprintln!("{} written, for {}: {cut}", path.display(), launcher.word());
    eprintln!("add what only you know: {}", launcher.left_out());
    Ok(code::OK)
}

/// Which candidate to pick instead.
fn other(request: &Request, ranking: &Ranking) -> String {
    let runs = |candidate: &Candidate| Launcher::of(request, candidate).is_ok();
    match ranking.candidates.iter().position(runs) {
        Some(row) => format!("the best that one runs is `--pick {}`", row + 1),
        None if request.pools.len() > 1 => {
            "ask for the devices of one class, or use a program that exchanges over the hosts and \
             takes `replicas` from `-o json`"
                .to_owned()
        }
        None => "list more of them with `--keep 50`".to_owned(),
    }
}

fn job(request: &Request, candidate: &Candidate, launcher: Launcher, name: &str) -> Value {
    let layout = &candidate.layout;
    // A launcher takes the devices of one class.
    let pool = layout.pools()[0];
    let devices = format!("{}:{}", request.pools[pool].class, layout.devices_of(pool));
    let known = known_model(name);
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let mut variables =
        Map::from_iter([("HET_LAYERS".to_owned(), layers(request, candidate).to_string().into())]);
    let wanted = launcher.variables(candidate).into_iter();
    variables.extend(wanted.map(|(name, value)| (name.to_owned(), value.into())));
    json!({
        "apiVersion": "heterosis.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": { "name": name.to_lowercase() },
        "spec": { "stages": [{
            "name": "train",
            "kind": "train",
            "run": launcher.words(request, candidate, known.as_ref()),
            "devices": devices,
            "env": variables,
            "checkpoint": candidate.finish.as_ref().map_or_else(
                || "30m".to_owned(),
                |finish| format!("{}s", finish.checkpoint_every.0 / 1_000),
            ),
        }] },
    })
}

/// Ranks of each kind of replica with the layers that they hold, for programs that place layers
/// unevenly.
fn layers(request: &Request, candidate: &Candidate) -> Value {
    let kinds = candidate.layout.replicas.iter().map(|kind| {
        let mut first = 0;
        let stages: Vec<Value> = kind
            .stages
            .iter()
            .map(|stage| {
                let begin = first;
                first += stage.layers;
                json!({
                    "class": request.pools[stage.pool].class,
                    "tensor": stage.tensor,
                    "first": begin,
                    "layers": stage.layers,
                })
            })
            .collect();
        json!({ "replicas": kind.count, "microbatches": kind.microbatches, "stages": stages })
    });
    Value::Array(kinds.collect())
}
