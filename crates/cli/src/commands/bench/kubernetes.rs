//! `het bench kubernetes`.

use std::env;
use std::path::{Path, PathBuf};

use anstream::eprintln;
use clap::Args;
use het_bench::{KubernetesBench, bench_kubernetes};

use crate::fail::{Fail, code};
use crate::output::{self, Column, Form, Shown};

#[derive(Debug, Args)]
pub struct KubernetesBenchArgs {
    /// Of a cluster that is there for this alone: etcd and an API server are enough.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,
    /// The program of kube-scheduler, of the version of the API server.
    #[arg(long, value_name = "FILE", default_value = "kube-scheduler")]
    pub kube_scheduler: PathBuf,
    /// Sizes of the cluster, one after the other.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "500,5000")]
    #[arg(value_parser = clap::value_parser!(u32).range(64..=10_000))]
    pub nodes: Vec<u32>,
    /// Pods, and then jobs, of one GPU: eight a node at most.
    #[arg(long, value_name = "N", default_value_t = 4_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=40_000))]
    pub pods: u32,
    /// Runs of each of the two, in turn.
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=100))]
    pub runs: u16,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

/// Columns of a table of clusters.
const KUBERNETES: [Column; 13] = [
    Column("NODES", "nodes", Shown::Always),
    Column("PODS", "pods", Shown::Always),
    Column("PODS_PER_S", "pods_per_s", Shown::Always),
    Column("KUBE_SCHEDULER", "kube_scheduler_pods_per_s", Shown::Always),
    Column("CPU_US", "cpu_us_per_bind", Shown::Always),
    Column("KUBE_SCHEDULER_CPU_US", "kube_scheduler_cpu_us_per_bind", Shown::Always),
    Column("GANG_DECISION_MS", "gang512_decision_ms", Shown::Always),
    Column("GANG_BOUND_S", "gang512_bound_s", Shown::Always),
    Column("JOBS_CREATED_S", "training_jobs_created_s", Shown::Always),
    Column("JOBS_BOUND_S", "training_jobs_bound_s", Shown::Always),
    Column("UNSCHEDULABLE_S", "unschedulable_s", Shown::Always),
    Column("RSS_MIB", "rss_mib", Shown::Always),
    Column("RECOVERY_S", "recovery_s", Shown::Always),
];

pub(super) fn kubernetes(args: &KubernetesBenchArgs) -> Result<u8, Fail> {
    let dir = tempfile::tempdir().map_err(|error| Fail::file(&env::temp_dir(), error))?;
    let program = env::current_exe().map_err(|error| Fail::file(Path::new("het"), error))?;
    let options = KubernetesBench {
        kubeconfig: args.kubeconfig.clone(),
        kube_scheduler: args.kube_scheduler.clone(),
        nodes: args.nodes.clone(),
        pods: args.pods as usize,
        runs: usize::from(args.runs),
    };
    let say = |what: &str| eprintln!("{what} …");
    let figures = bench_kubernetes((dir.path(), &program), &options, say);
    let figures = figures.map_err(Fail::from_error)?;
    let rows = figures.iter().map(|row| serde_json::to_value(row).unwrap_or_default());
    output::list("KubernetesBenchList", &rows.collect::<Vec<_>>(), &KUBERNETES, args.output);
    Ok(code::OK)
}
