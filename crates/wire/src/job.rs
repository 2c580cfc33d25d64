//! Job files: from YAML text to a [`het_core::JobSpec`].
//!
//! Text becomes a tree with places, the tree is held against the schema of the shapes (`shape`,
//! `schema`), the shapes are checked for sense and resolved for one cluster (`resolve`). Every step
//! reports all it finds, each with line, caret and a hint. A command or a script becomes such a
//! text first (`script`).

mod after;
mod begin;
mod checks;
mod names;
mod overrides;
mod params;
mod placeholders;
mod resolve;
mod schema;
pub mod script;
mod shape;

pub use after::{After, AfterError, AfterJob, AfterSelector, parse as parse_after};
pub use begin::{BEGIN_HINT, begin};
pub use names::{name_problem, tenant_problem};
pub use overrides::Override;
pub use resolve::{Context, TRAINER, Trainer, Volumes, scratch};
pub use schema::json_schema;
pub use shape::{
    AfterFile, AlternativeFile, CheckpointFile, CommandFile, CompanionsFile, JobFile, Metadata,
    PrecisionFile, PriorityFile, RanksFile, StageFile, TrainsFile, TuningFile,
};

use crate::file::{Problem, Problems, Severity, Tree};
use resolve::Known;

/// Most bytes that the programs of a job have in words, variables and paths.
const RESOLVED_BYTES_MAX: usize = 1 << 20;

/// A job file that was read and makes sense, before a cluster is known.
#[derive(Debug, Clone)]
pub struct TrainingJob {
    pub file: JobFile,
    /// What is accepted but worth a word.
    pub warnings: Problems,
    source: String,
    tree: Tree,
    text: String,
}

/// Parses and validates a job file, long or short form. `source` names it in messages.
///
/// # Errors
/// Everything that is wrong with the file, in the order of its lines.
pub fn parse(text: &str, source: &str) -> Result<TrainingJob, Problems> {
    parse_with(text, source, &[], &[])
}

/// The same with values that take the places of the file's, for a cluster with these classes of
/// devices beside those of the catalogue.
///
/// # Errors
/// Everything that is wrong with the file or the values.
pub fn parse_with(
    file: &str,
    source: &str,
    overrides: &[Override],
    classes: &[het_core::DeviceClass],
) -> Result<TrainingJob, Problems> {
    let text = &overrides::shown(file, overrides);
    let refused = |problems| Problems::new(text, source, problems);
    let mut tree = Tree::parse(file, "job").map_err(|problem| refused(vec![problem]))?;
    overrides::apply(&mut tree, file, overrides).map_err(refused)?;
    params::fill(&mut tree).map_err(refused)?;
    let problems = schema::problems(&tree);
    if !problems.is_empty() {
        return Err(Problems::new(text, source, problems));
    }
    let file = shape::read(&tree).map_err(|problem| Problems::new(text, source, vec![problem]))?;
    let known = Known { classes, ..Known::default() };
    let found = checks::problems(&file, &tree, known);
    let (errors, warnings): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|problem| problem.severity == Severity::Error);
    if !errors.is_empty() {
        return Err(Problems::new(text, source, errors));
    }
    let warnings = Problems::new(text, source, warnings);
    Ok(TrainingJob { file, warnings, source: source.to_owned(), tree, text: text.to_owned() })
}

impl TrainingJob {
    /// Whether the trainer that is installed as this file has to say with which drivers a program
    /// of the job computes.
    pub fn asks_trainer(&self, trainer: &str) -> bool {
        resolve::asks_trainer(&self.file, trainer)
    }

    /// Whether any stage does, so that its speed can be planned.
    pub fn says_what_it_trains(&self) -> bool {
        self.file.spec.stages.iter().any(|stage| stage.needs.trains.is_some())
    }

    /// Resolves device words, paths and placeholders for one cluster.
    ///
    /// # Errors
    /// Device words that the cluster's classes make wrong, models that nobody knows, and a job that
    /// its placeholders make too large.
    pub fn resolve(&self, context: &Context<'_>) -> Result<het_core::JobSpec, Problems> {
        let problems: Vec<Problem> = checks::problems(&self.file, &self.tree, context.known())
            .into_iter()
            .filter(|problem| problem.severity == Severity::Error)
            .collect();
        if !problems.is_empty() {
            return Err(Problems::new(&self.text, &self.source, problems));
        }
        let spec = resolve::resolve(&self.file, context);
        if context.volumes == Volumes::Refused
            && let Some(stage) = resolve::stage_with_volumes(&spec)
        {
            let text = format!("stage `{}` has `volumes`, which only clusters have", stage.name);
            let hint = "name directories of the machine in `mounts`".to_owned();
            let problem = self.tree.problem(text, hint);
            return Err(Problems::new(&self.text, &self.source, vec![problem]));
        }
        let bytes = resolve::text_bytes(&spec);
        if bytes > RESOLVED_BYTES_MAX {
            let text = format!(
                "the job has {bytes} bytes once its placeholders are filled in, more than \
                 {RESOLVED_BYTES_MAX}"
            );
            let hint = "repeat fewer placeholders, or put the words into a script".to_owned();
            let problem = self.tree.problem(text, hint);
            return Err(Problems::new(&self.text, &self.source, vec![problem]));
        }
        Ok(spec)
    }
}
