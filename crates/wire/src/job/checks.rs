//! What a schema cannot say: names that stand for nothing, circles, words that cannot be read.

use std::collections::BTreeMap;
use std::iter;

use het_core::DeviceClass;
use jiff::Zoned;

use super::after;
use super::begin::{BEGIN_HINT, begin};
use super::names;
use super::placeholders;
use super::resolve::{Known, STALL_NEVER, command_words, named_outputs};
use super::shape::{
    BatchFile, BatchRangeFile, ElasticFile, JobFile, Needs, StageFile, TrainsFile, TuningFile,
    is_long,
};
use crate::file::{Node, Place, Problem, Severity, Tree};
use crate::quantity;
use crate::words::{self, closest};

/// Most names in `after` and `follows` of all stages of a job.
const EDGES_MAX: usize = 4_096;

/// Most alternatives of all stages of a job.
const ALTERNATIVES_MAX: usize = 256;

/// Everything in the file that makes no sense.
pub(crate) fn problems(file: &JobFile, tree: &Tree, known: Known<'_>) -> Vec<Problem> {
    let too_many = too_many_edges(file, tree).or_else(|| too_many_alternatives(file, tree));
    if let Some(problem) = too_many {
        return vec![problem];
    }
    let mut found = names::problems(file, tree);
    let spec_tree = if is_long(tree) { tree.at("/spec") } else { tree };
    duration_at(&mut found, spec_tree, "time_limit");
    for (index, stage) in file.spec.stages.iter().enumerate() {
        let stage_tree = match is_long(tree) {
            true => tree.at(&format!("/spec/stages/{index}")),
            false => tree,
        };
        stage_problems(&mut found, file, index, stage, stage_tree, known);
    }
    found.extend(cycle(file, tree));
    start_problems(&mut found, file, spec_tree);
    found
}

/// What the job waits for before it begins can be meant.
fn start_problems(found: &mut Vec<Problem>, file: &JobFile, tree: &Tree) {
    if let (Some(after), Some(at)) = (&file.spec.after, tree.get("after"))
        && let Err(error) = after::parse(&after.text())
    {
        found.push(at.problem(error.to_string(), after::AfterError::HINT.to_owned()));
    }
    if let (Some(text), Some(at)) = (&file.spec.begin, tree.get("begin"))
        && begin(text, &Zoned::default()).is_none()
    {
        let message = format!("`{text}` is no time at which a job can begin");
        found.push(at.problem(message, BEGIN_HINT.to_owned()));
    }
}

/// Words in braces that are meant as placeholders and are none.
fn placeholder_problems(found: &mut Vec<Problem>, tree: &Tree) {
    if let Node::Text(text) = &tree.value {
        for (word, hint) in placeholders::unknown(text) {
            found.push(tree.problem(format!("there is no placeholder `{{{word}}}`"), hint));
        }
    }
    tree.items().for_each(|item| placeholder_problems(found, item));
    let keys: Vec<&str> = tree.keys().collect();
    keys.iter().filter_map(|key| tree.get(key)).for_each(|at| placeholder_problems(found, at));
}

fn stage_problems(
    found: &mut Vec<Problem>,
    file: &JobFile,
    index: usize,
    stage: &StageFile,
    tree: &Tree,
    known: Known<'_>,
) {
    if file.spec.stages[..index].iter().any(|other| other.name == stage.name) {
        let at = tree.get("name").unwrap_or(tree);
        found.push(at.problem(format!("two stages are named `{}`", stage.name), None));
    }
    let names = || file.spec.stages.iter().map(|stage| stage.name.as_str());
    for (field, others) in [("after", &stage.after), ("follows", &stage.follows)] {
        for (row, name) in others.iter().enumerate() {
            if !names().any(|known| known == name) {
                let at = tree.at(&format!("/{field}/{row}"));
                let hint = closest(name, names()).map(|near| format!("did you mean `{near}`?"));
                found.push(at.problem(format!("`{field}` names no stage `{name}`"), hint));
            }
        }
    }
    for (row, name) in stage.follows.iter().enumerate() {
        if stage.after.contains(name) {
            let at = tree.at(&format!("/follows/{row}"));
            let message = format!("`{name}` stands in `after` and in `follows`");
            let hint = "keep `follows` to read its output while it writes, `after` to wait for its \
                        end";
            found.push(at.problem(message, hint.to_owned()));
        }
    }
    if let Some(devices) = tree.get("devices") {
        device_words(
            found,
            devices,
            stage.needs.devices.as_deref().unwrap_or_default(),
            known.classes,
        );
    }
    for (row, alternative) in stage.needs.alternatives.iter().enumerate() {
        let at = tree.at(&format!("/alternatives/{row}/devices"));
        device_words(found, at, &alternative.devices, known.classes);
    }
    driver_problems(found, &stage.needs, tree);
    trains_problems(found, tree, stage.needs.trains.as_ref(), known.models);
    checkpoint_problems(found, tree);
    preemption_problems(found, &stage.needs, tree);
    elastic_problems(found, &stage.needs, tree, known.classes);
    warm_problems(found, &stage.needs, tree);
    if stage.needs.stall.as_deref() != Some(STALL_NEVER) {
        duration_at(found, tree, "stall");
    }
    unused_fields(found, tree);
    let texts = [
        "run",
        "resume",
        "env",
        "checkpoint",
        "container",
        "alternatives",
        "logs",
        "stdin",
        "inputs",
    ];
    for at in texts.into_iter().filter_map(|field| tree.get(field)) {
        placeholder_problems(found, at);
    }
    if let Some(inputs) = tree.get("inputs") {
        input_problems(found, inputs);
    }
    if let Some(with) = tree.get("with") {
        size_at(found, with, "memory");
        size_at(found, with, "scratch");
        rate_at(found, with, "read");
    }
    output_names(found, file, stage, tree);
}

fn device_words(found: &mut Vec<Problem>, at: &Tree, text: &str, classes: &[DeviceClass]) {
    if let Err((offset, error)) = words::alternatives(text, classes) {
        let rest = text[offset..].split('|').next().unwrap_or_default().trim();
        // A quoted text begins one column before its first character.
        let column = at.place.column + text[..offset].chars().count() + 1;
        let place = Place { line: at.place.line, column };
        let length = rest.chars().count().max(1);
        let (message, hint) = (error.to_string(), Some(error.hint()));
        let severity = Severity::Error;
        found.push(Problem { severity, place, length, message, hint });
    }
}

/// A device may be declared with any driver, so one that nobody knows is worth a word and no more.
fn driver_problems(found: &mut Vec<Problem>, needs: &Needs, tree: &Tree) {
    let rows = (0..needs.alternatives.len()).map(|row| tree.at(&format!("/alternatives/{row}")));
    let lists = iter::once(tree).chain(rows).filter_map(|of| of.get("drivers"));
    for item in lists.flat_map(Tree::items) {
        if let Node::Text(text) = &item.value
            && !words::drivers().any(|known| known == text)
        {
            let hint = match closest(text, words::drivers()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "`het devices` lists the drivers of devices".to_owned(),
            };
            let message = format!("`{text}` is no driver that is known: {hint}");
            let problem = item.problem(message, None);
            found.push(Problem { severity: Severity::Warning, ..problem });
        }
    }
}

/// The model is known, and adapters have a rank where there are any.
fn trains_problems(
    found: &mut Vec<Problem>,
    tree: &Tree,
    trains: Option<&TrainsFile>,
    models: &[&str],
) {
    let (Some(tree), Some(trains)) = (tree.get("trains"), trains) else { return };
    let is_known = models.iter().any(|known| known.eq_ignore_ascii_case(&trains.model));
    if !models.is_empty() && !is_known {
        let at = tree.get("model").unwrap_or(tree);
        let near = closest(&trains.model, models.iter().copied());
        let hint = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("there are `{}`", models.join("`, `")),
        };
        found.push(at.problem(format!("`{}` is no model that is known", trains.model), hint));
    }
    if let (TuningFile::Full, Some(at)) = (trains.tuning, tree.get("rank")) {
        let hint = "say `tuning: lora` or `tuning: qlora`, or leave `rank` out".to_owned();
        found.push(at.problem("`rank` is of adapters, and all weights are trained", hint));
    }
}

fn checkpoint_problems(found: &mut Vec<Problem>, tree: &Tree) {
    let Some(checkpoint) = tree.get("checkpoint") else { return };
    duration_at(found, tree, "checkpoint");
    duration_at(found, checkpoint, "every");
    duration_at(found, checkpoint, "grace");
}

/// Sizes are in order, what it asks for lies among them, and it can begin again at another.
fn elastic_problems(found: &mut Vec<Problem>, needs: &Needs, tree: &Tree, classes: &[DeviceClass]) {
    let (Some(at), Some(ElasticFile { min, max, batch })) = (tree.get("elastic"), &needs.elastic)
    else {
        return;
    };
    if let BatchFile::Range(BatchRangeFile { min, max }) = batch
        && min > max
    {
        let message = format!("{min} to {max} are no sizes of a batch");
        let hint = "write for example `batch: { min: 64, max: 512 }`";
        found.push(at.problem(message, hint.to_owned()));
    }
    if *min == 0 || min > max {
        let message = format!("{min} to {max} are no numbers of devices");
        found.push(at.problem(message, "write for example `{ min: 1, max: 8 }`".to_owned()));
        return;
    }
    let texts = needs.devices.iter().chain(needs.alternatives.iter().map(|row| &row.devices));
    let counts = texts.flat_map(|text| words::alternatives(text, classes).unwrap_or_default());
    for (_, count) in counts.filter(|(_, count)| !(*min..=*max).contains(count)) {
        let message =
            format!("the stage asks for {count} devices, which is not from {min} to {max}");
        let hint = "ask for a number within them: the batch of the program is meant for so many";
        found.push(at.problem(message, hint.to_owned()));
    }
    if needs.checkpoint.is_none() {
        let message = "a stage without `checkpoint` would begin anew at every other size";
        let hint = "say where it saves, for example `checkpoint: { every: 10m }`, and `resume`";
        found.push(at.problem(message, hint.to_owned()));
    }
}

/// The devices of a container are chosen when it begins.
fn warm_problems(found: &mut Vec<Problem>, needs: &Needs, tree: &Tree) {
    let (Some(true), Some(at)) = (needs.warm, tree.get("warm")) else { return };
    let contained = needs.alternatives.iter().any(|row| row.container.is_some());
    if needs.container.is_some() || contained {
        let message = "a program in a container cannot be started before its devices are free";
        let hint = "leave `warm` out, and name what it reads as `inputs`".to_owned();
        found.push(at.problem(message, hint));
    }
}

/// Programs are told their inputs one a line.
fn input_problems(found: &mut Vec<Problem>, inputs: &Tree) {
    for item in inputs.items() {
        if let Node::Text(text) = &item.value
            && text.contains(char::is_control)
        {
            let hint = "write a path or a model's name in one line, or rename the file";
            found.push(item.problem("an input has a control character", hint.to_owned()));
        }
    }
}

/// A least time to run says nothing about what runs to its end.
fn preemption_problems(found: &mut Vec<Problem>, needs: &Needs, tree: &Tree) {
    duration_at(found, tree, "min_runtime");
    if let (Some(false), Some(at)) = (needs.preemptible, tree.get("min_runtime")) {
        let message = "`min_runtime` means nothing beside `preemptible: false`";
        let hint = "leave one of them out: what is not preemptible runs to its end";
        found.push(at.problem(message, hint.to_owned()));
    }
}

/// A duration where the field holds a text.
fn duration_at(found: &mut Vec<Problem>, tree: &Tree, field: &str) {
    let read = |text: &str| quantity::duration(text).is_some();
    quantity_at(found, tree.get(field), read, ("a duration", "`90s`, `10m` or `1h30m`"));
}

fn size_at(found: &mut Vec<Problem>, tree: &Tree, field: &str) {
    let read = |text: &str| quantity::size(text).is_some();
    quantity_at(found, tree.get(field), read, ("a size", "`64GiB`"));
}

fn rate_at(found: &mut Vec<Problem>, tree: &Tree, field: &str) {
    let read = |text: &str| quantity::rate(text).is_some();
    quantity_at(found, tree.get(field), read, ("a bandwidth", "`2GB/s`"));
}

/// What a quantity is called, and how one is written.
fn quantity_at(
    found: &mut Vec<Problem>,
    at: Option<&Tree>,
    can_be_read: impl Fn(&str) -> bool,
    (what, example): (&str, &str),
) {
    let Some(at) = at else { return };
    if let Some(text) = at.to_json().as_str()
        && !can_be_read(text)
    {
        let hint = format!("write for example {example}");
        found.push(at.problem(format!("`{text}` is not {what}"), hint));
    }
}

/// Fields of the format that this version reads but does not act on.
fn unused_fields(found: &mut Vec<Problem>, tree: &Tree) {
    let fields = [
        ("topology/prefer", "only `within` is honoured"),
        ("checkpoint/portable", "a checkpoint is taken to fit every alternative"),
    ];
    for (path, what) in fields {
        let mut steps = path.split('/');
        let first = steps.next().and_then(|step| tree.entry(step));
        let entry = match steps.next() {
            Some(step) => first.and_then(|entry| entry.value.entry(step)),
            None => first,
        };
        found.extend(entry.map(|entry| Problem {
            severity: Severity::Warning,
            place: entry.key_place,
            length: entry.key.chars().count(),
            message: format!("`{}` is not acted on yet: {what}", entry.key),
            hint: None,
        }));
    }
}

/// `{stage.NAME.output}` names a stage of the job that runs before.
fn output_names(found: &mut Vec<Problem>, file: &JobFile, stage: &StageFile, tree: &Tree) {
    let Some(run) = tree.get("run") else { return };
    for word in command_words(&stage.needs.run) {
        for name in named_outputs(&word) {
            let known = file.spec.stages.iter().any(|other| other.name == name);
            if !known {
                let names = file.spec.stages.iter().map(|stage| stage.name.as_str());
                let hint = closest(&name, names).map(|near| format!("did you mean `{near}`?"));
                found.push(run.problem(format!("there is no stage `{name}` to read from"), hint));
            }
        }
    }
}

/// Each name is looked up and each circle searched: a file may not make that long.
fn too_many_edges(file: &JobFile, tree: &Tree) -> Option<Problem> {
    let stages = file.spec.stages.iter();
    let edges: usize = stages.map(|stage| stage.after.len() + stage.follows.len()).sum();
    let message = format!("the stages name {edges} others, more than {EDGES_MAX}");
    let hint = "a stage that waits for another waits for what that one waits for too".to_owned();
    (edges > EDGES_MAX).then(|| tree.at("/spec/stages").problem(message, hint))
}

/// Each is a program of its own to the scheduler, and all are looked at in every decision.
fn too_many_alternatives(file: &JobFile, tree: &Tree) -> Option<Problem> {
    let of_stage = |stage: &StageFile| -> usize {
        let rows = stage.needs.alternatives.iter().map(|row| row.devices.as_str());
        let texts = stage.needs.devices.as_deref().into_iter().chain(rows);
        texts.map(|text| text.split('|').count()).sum()
    };
    let count: usize = file.spec.stages.iter().map(of_stage).sum();
    let message = format!("the stages have {count} alternatives, more than {ALTERNATIVES_MAX}");
    let hint = "name classes of devices rather than each of them".to_owned();
    (count > ALTERNATIVES_MAX).then(|| tree.problem(message, hint))
}

/// The first cycle of `after` and `follows` that is found, told from its first stage in file order.
fn cycle(file: &JobFile, tree: &Tree) -> Option<Problem> {
    let stages = &file.spec.stages;
    let rows: BTreeMap<&str, usize> =
        stages.iter().enumerate().rev().map(|(row, stage)| (stage.name.as_str(), row)).collect();
    let needs: Vec<Vec<usize>> = stages
        .iter()
        .map(|stage| {
            let names = stage.after.iter().chain(&stage.follows);
            names.filter_map(|name| rows.get(name.as_str()).copied()).collect()
        })
        .collect();
    let mut path = first_cycle(&needs)?;
    let least = path.iter().enumerate().min_by_key(|(_, row)| **row).map_or(0, |(at, _)| at);
    path.rotate_left(least);
    let first = path[0];
    path.push(first);
    let field = if stages[first].after.is_empty() { "follows" } else { "after" };
    let at = tree.at(&format!("/spec/stages/{first}/{field}"));
    let names: Vec<&str> = path.iter().map(|&row| stages[row].name.as_str()).collect();
    let message = format!("`{field}` goes round in a circle: {}", names.join(" → "));
    Some(at.problem(message, format!("remove one of these `{field}`")))
}

/// Rows that need each other in a circle, by one walk over all edges.
fn first_cycle(needs: &[Vec<usize>]) -> Option<Vec<usize>> {
    let mut done = vec![false; needs.len()];
    for start in 0..needs.len() {
        // Rows on the way here, with the next edge of each.
        let mut path = vec![(start, 0)];
        let mut on_path = vec![false; needs.len()];
        on_path[start] = true;
        while let Some((row, edge)) = path.last_mut() {
            let row = *row;
            let next = needs[row].get(*edge).copied().filter(|_| !done[row]);
            *edge += 1;
            match next {
                Some(next) if on_path[next] => {
                    let rows = path.iter().map(|(row, _)| *row);
                    return Some(rows.skip_while(|row| *row != next).collect());
                }
                Some(next) if done[next] => {}
                Some(next) => {
                    on_path[next] = true;
                    path.push((next, 0));
                }
                None => {
                    on_path[row] = false;
                    done[row] = true;
                    path.pop();
                }
            }
        }
    }
    None
}
