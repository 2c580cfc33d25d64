//! `het kubernetes`: what a cluster is given.

use std::fs;
use std::path::{Path, PathBuf};

use anstream::println;
use clap::{Args, Subcommand, value_parser};
use het_server::{Binding, ManifestOptions, SCHEDULER, SCHEDULER_NAMESPACE, manifests};
use het_wire::{device_table, yaml};

use crate::fail::{Fail, code};

#[derive(Debug, Subcommand)]
pub enum KubernetesCommand {
    /// Print what `kubectl apply -f -` takes: the definition of jobs, an account for the server
    /// with its rights, and with `--image` the server.
    Manifests(ManifestArgs),
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
    let KubernetesCommand::Manifests(args) = command;
    let options = ManifestOptions {
        namespace: args.namespace.clone(),
        image: args.image.clone(),
        scheduler: args.scheduler_name.clone(),
        storage: args.storage.clone(),
        replicas: args.replicas,
        binding: binding_of(args.scheduling_gates),
        jobs_namespaces: args.jobs_namespace.clone(),
        device_table: args.device_table.as_deref().map(device_table).transpose()?,
    };
    for object in manifests(&options) {
        println!("---\n{}", yaml::to_text(&object).trim_end());
    }
    Ok(code::OK)
}
