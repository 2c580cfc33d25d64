//! `het kubernetes`: what a cluster is given.

use std::fs;
use std::path::{Path, PathBuf};

use anstream::println;
use clap::{Args, Subcommand, value_parser};
use het_server::{Binding, ManifestOptions, SCHEDULER, SCHEDULER_NAMESPACE, chart, manifests};
use het_wire::{device_table, yaml};

use crate::fail::{Fail, code};

#[derive(Debug, Subcommand)]
pub enum KubernetesCommand {
    /// Print what `kubectl apply -f -` takes: the definition of jobs, an account for the server
    /// with its rights, and with `--image` the server.
    Manifests(ManifestArgs),
    /// Write a Helm chart of the same objects.
    Chart(ChartArgs),
}

#[derive(Debug, Args)]
pub struct ChartArgs {
    /// Where: it is made, and must not be there yet.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

#[derive(Debug, Args)]
pub struct ManifestArgs {
    /// An image with `het` on its path, which the server runs in.
    #[arg(long)]
    pub image: Option<String>,
    /// Where the server runs.
    #[arg(long, default_value = SCHEDULER_NAMESPACE)]
    pub namespace: String,
    /// The `schedulerName` of its pods.
    #[arg(long, value_name = "NAME", default_value = SCHEDULER)]
    pub scheduler_name: String,
    /// Size of the volume for its log, as Kubernetes writes it.
    #[arg(long, value_name = "SIZE", default_value = "10Gi")]
    pub storage: String,
    /// How many servers: one leads, the others wait, and none has a volume.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = value_parser!(u32).range(1..))]
    pub replicas: u32,
    /// For `het server --scheduling-gates`, by which kube-scheduler gives pods their nodes.
    #[arg(long)]
    pub scheduling_gates: bool,
    /// A namespace of jobs whose ranks are supervised by `het server --rank-image`; several by
    /// repetition.
    #[arg(long, value_name = "NAMESPACE")]
    pub jobs_namespace: Vec<String>,
    /// Let a namespace be handed over by the label `heterosis.dev/scheduler`: pods and jobs that
    /// are made there ask for this scheduler. Needs Kubernetes 1.36.
    #[arg(long)]
    pub handed_over_namespaces: bool,
    /// What `het server --device-table` reads: it becomes a ConfigMap beside the server.
    #[arg(long, value_name = "FILE", requires = "image")]
    pub device_table: Option<PathBuf>,
}

pub fn binding_of(scheduling_gates: bool) -> Binding {
    if scheduling_gates { Binding::KubeScheduler } else { Binding::Own }
}

/// The text of a file without mistakes.
fn device_table(path: &Path) -> Result<String, Fail> {
    let text = fs::read_to_string(path).map_err(|error| Fail::file(path, error))?;
    match device_table::parse(&text, &path.display().to_string()) {
        Ok(_) => Ok(text),
        Err(problems) => Err(Fail::Report { code: code::USAGE, text: problems.to_string() }),
    }
}

pub fn kubernetes(command: &KubernetesCommand) -> Result<u8, Fail> {
    match command {
        KubernetesCommand::Manifests(args) => print_manifests(args),
        KubernetesCommand::Chart(args) => write_chart(&args.directory),
    }
}

fn print_manifests(args: &ManifestArgs) -> Result<u8, Fail> {
    let options = ManifestOptions {
        namespace: args.namespace.clone(),
        image: args.image.clone(),
        scheduler: args.scheduler_name.clone(),
        storage: args.storage.clone(),
        replicas: args.replicas,
        binding: binding_of(args.scheduling_gates),
        jobs_namespaces: args.jobs_namespace.clone(),
        handed_over: args.handed_over_namespaces,
        device_table: args.device_table.as_deref().map(device_table).transpose()?,
    };
    for object in manifests(&options) {
        println!("---\n{}", yaml::to_text(&object).trim_end());
    }
    Ok(code::OK)
}

/// # Errors
/// When it is there already, or cannot be written.
fn write_chart(directory: &Path) -> Result<u8, Fail> {
    fs::create_dir(directory).map_err(|error| {
        Fail::file(directory, error).hint("name a directory that is not there yet")
    })?;
    for file in chart(env!("CARGO_PKG_VERSION")) {
        let path = directory.join(&file.path);
        let parent = path.parent().unwrap_or(directory);
        fs::create_dir_all(parent).map_err(|error| Fail::file(parent, error))?;
        fs::write(&path, file.text).map_err(|error| Fail::file(&path, error))?;
    }
    let at = directory.display();
    println!(
        "wrote {at}\n\nhelm install heterosis {at} --namespace heterosis --create-namespace \
         --set image=IMAGE"
    );
    Ok(code::OK)
}
