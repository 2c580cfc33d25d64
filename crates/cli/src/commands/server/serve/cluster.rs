//! The process that serves a cluster.

use std::time::Duration;
use std::{fs, thread};

use anstream::eprintln;
use het_server::api::Tokens;
use het_server::{
    Access, Cluster, ClusterEnd, ClusterOptions, ClusterService, Election, ElectionError, Home,
    Leadership, Standby, StartError, begin_store, leader_identity, raise_descriptor_limit,
    since_boot,
};

use het_wire::device_table::{self, ResourceRow};

use super::{
    StopRequest, acquire, keeping, say_at_start, scheduling, serve_until_stopped, start_failed,
};
use crate::commands::kubernetes::binding_of;
use crate::commands::server::{KubernetesArgs, ServerArgs, signals};
use crate::fail::{Fail, code};
use crate::local::home;

const RECONNECT_EVERY: Duration = Duration::from_secs(1);

/// Runs jobs as pods. Nothing of this machine is used but the directory for the log.
pub(super) fn serve_cluster(args: &ServerArgs) -> Result<u8, Fail> {
    refuse_machine_options(args)?;
    let stop = StopRequest::on(signals()?);
    raise_descriptor_limit();
    let home = home()?;
    home.server_dir()?;
    let _lock = acquire(&home)?;
    if args.new_store {
        begin_store(&home).map_err(Fail::from_error)?;
    }
    let mut cluster = connect(&args.kubernetes)?;
    loop {
        // What can fail here fails before it leads.
        let tokens = Tokens::open(&home.tokens()).map_err(Fail::from_error)?;
        let options = ClusterOptions {
            scheduler: args.kubernetes.scheduler_name.clone(),
            binding: binding_of(args.kubernetes.scheduling_gates),
            supervisor: args.kubernetes.rank_image.clone(),
            resources: resources(&args.kubernetes)?,
            scheduling: scheduling(args)?,
            keeping: keeping(args),
        };
        let Some(leadership) = lead(&args.kubernetes, &cluster, &home, &stop)? else {
            return Ok(code::OK);
        };
        let service = match ClusterService::start(home.clone(), (cluster, leadership), options) {
            Err(StartError::LeadLost) => {
                cluster = reconnect(&args.kubernetes, &stop)?;
                continue;
            }
            service => service.map_err(start_failed)?,
        };
        say_at_start(&service.refused, &service.news);
        let served = serve_until_stopped(args, home.clone(), tokens, service.served(), &stop);
        match service.join().map_err(Fail::from_error)? {
            ClusterEnd::Asked => return served,
            ClusterEnd::LeadLost if stop.is_asked() => return served,
            ClusterEnd::LeadLost => {
                eprintln!("another server may lead now: waiting to lead again");
                cluster = reconnect(&args.kubernetes, &stop)?;
            }
        }
    }
}

fn resources(args: &KubernetesArgs) -> Result<Vec<ResourceRow>, Fail> {
    let Some(path) = &args.device_table else { return Ok(Vec::new()) };
    let text = fs::read_to_string(path).map_err(|error| Fail::file(path, error))?;
    let rows = device_table::parse(&text, &path.display().to_string());
    rows.map_err(|problems| Fail::Report { code: code::USAGE, text: problems.to_string() })
}

/// Once the API server answers again, or somebody ends the wait.
fn reconnect(args: &KubernetesArgs, stop: &StopRequest) -> Result<Cluster, Fail> {
    loop {
        match connect(args) {
            Err(_) if !stop.is_asked() => thread::sleep(RECONNECT_EVERY),
            connected => return connected,
        }
    }
}

fn connect(args: &KubernetesArgs) -> Result<Cluster, Fail> {
    let KubernetesArgs { kubeconfig, kube_context, .. } = args;
    let access = Access { kubeconfig: kubeconfig.clone(), context: kube_context.clone() };
    Cluster::connect(access, since_boot).map_err(Fail::from_error)
}

/// Waits until no other server leads; `None` where somebody ends the wait.
fn lead(
    args: &KubernetesArgs,
    cluster: &Cluster,
    home: &Home,
    stop: &StopRequest,
) -> Result<Option<Leadership>, Fail> {
    let election = Election {
        namespace: args.lease_namespace.clone(),
        name: args.scheduler_name.clone(),
        identity: leader_identity(home),
    };
    let mut told = String::new();
    let standby = |holder: &str| {
        if !holder.is_empty() && holder != told {
            eprintln!("`{holder}` leads: waiting for its Lease to end");
            holder.clone_into(&mut told);
        }
        if stop.is_asked() { Standby::GiveUp } else { Standby::Wait }
    };
    match cluster.lead(election, standby) {
        Ok(leadership) => Ok(Some(leadership)),
        Err(ElectionError::GivenUp) => Ok(None),
        Err(error @ ElectionError::NoNamespace { .. }) => Err(Fail::from_error(error)
            .hint("make it by `het kubernetes manifests`, or name another by `--lease-namespace`")),
        Err(error) => Err(Fail::from_error(error)),
    }
}

/// What is said of devices and disks of this machine would have no effect.
fn refuse_machine_options(args: &ServerArgs) -> Result<(), Fail> {
    let given = [
        ("--devices", args.devices.is_some()),
        ("--share", !args.share.is_empty()),
        ("--declare", args.declare.is_some()),
        ("--scratch", args.scratch.is_some()),
        ("--read", args.read.is_some()),
        ("--health-check", args.health_check.is_some()),
        ("--run-as", args.run_as.is_some()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((option, _)) => {
            let text = format!("`{option}` is about this machine, and jobs run in the cluster");
            Err(Fail::new(code::USAGE, text).hint("leave it out"))
        }
    }
}
