//! What stages take of a node beside devices, and which files they read, as their programs showed
//! before.

use std::sync::Arc;

use het_core::{Bytes, HostResources, JobSpec, Name, StageSpec, Topology};

use crate::{CallError, Handle, Replica};

/// With what was measured, for stages that do not say it themselves.
///
/// # Errors
/// When the replica cannot be reached.
pub async fn with_measured_needs(handle: &Handle, spec: JobSpec) -> Result<JobSpec, CallError> {
    let spec = Arc::new(spec);
    let asked = Arc::clone(&spec);
    let needs = |replica: &Replica, stage: &StageSpec, tenant: &Name| {
        let rates = &replica.situation().view.rates;
        let measured = rates.demand(&stage.profile);
        let demand = completed(stage, measured, replica.state().topology());
        (demand, rates.inputs(tenant, &stage.profile).to_vec())
    };
    let look = move |replica: &Replica| -> Vec<(HostResources, Vec<String>)> {
        asked.stages.iter().map(|stage| needs(replica, stage, &asked.tenant)).collect()
    };
    let needs = handle.query(look).await?;
    let mut spec = Arc::unwrap_or_clone(spec);
    for (stage, (demand, inputs)) in spec.stages.iter_mut().zip(needs) {
        stage.companions.host = demand;
        add_seen_inputs(stage, &inputs);
    }
    Ok(spec)
}

/// To alternatives that name none and do not run in a container, where paths are others.
fn add_seen_inputs(stage: &mut StageSpec, inputs: &[String]) {
    for alternative in stage.alternatives.iter_mut().filter(|_| !inputs.is_empty()) {
        let launch = &alternative.launch;
        if launch.inputs.is_empty() && launch.container.is_none() {
            Arc::make_mut(&mut alternative.launch).seen_inputs = inputs.to_vec();
        }
    }
}

/// At most what the node that has most has for as many ranks as may come to one: nobody asked for
/// it, so nobody waits for ever because of it.
fn completed(stage: &StageSpec, measured: HostResources, topology: &Topology) -> HostResources {
    let ranks = stage.ranks.ranks_max(stage.alternatives.iter().map(|it| it.count));
    let most = topology.nodes.iter().fold(HostResources::NONE, |most, node| most.most(node.host));
    let of = |asked: Bytes, measured: Bytes, most: Bytes| match asked {
        Bytes::ZERO => measured.min(Bytes(most.0 / u64::from(ranks.max(1)))),
        asked => asked,
    };
    let asked = stage.companions.host;
    HostResources {
        scratch: of(asked.scratch, measured.scratch, most.scratch),
        read: of(asked.read, measured.read, most.read),
        ..asked
    }
}

#[cfg(test)]
mod tests {
    use het_core::RankRule;
    use het_testkit::build::{alternative, stage, topology};

    use super::*;

    #[test]
    fn what_is_asked_for_stands_and_what_is_measured_never_exceeds_a_node() {
        let mut topology = topology(&[(&[("h100", 1)], 0), (&[("h100", 1)], 0)]);
        topology.nodes[0].host.scratch = Bytes(10);
        topology.nodes[1].host.scratch = Bytes(20);
        let host = |scratch, read| HostResources {
            scratch: Bytes(scratch),
            read: Bytes(read),
            ..HostResources::NONE
        };
        let check = |asked: (u64, u64), measured: (u64, u64), expected: (u64, u64)| {
            let mut train = stage("train", vec![alternative("h100", 4)]);
            train.companions.host = host(asked.0, asked.1);
            let measured = host(measured.0, measured.1);
            assert_eq!(completed(&train, measured, &topology), host(expected.0, expected.1));
            train.ranks = RankRule::PER_DEVICE;
            let of_rank = completed(&train, measured, &topology);
            assert!(asked.0 > 0 || of_rank.scratch.0 <= 5, "four ranks fit: {of_rank:?}");
        };
        check((0, 0), (5, 7), (5, 7));
        check((0, 0), (50, 7), (20, 7));
        check((30, 0), (5, 7), (30, 7));
        check((0, 3), (0, 7), (0, 3));
    }

    #[test]
    fn inputs_that_a_stage_names_are_all_that_count() {
        let mut train = stage("train", vec![alternative("h100", 4), alternative("a100", 4)]);
        let named = Arc::make_mut(&mut train.alternatives[1].launch);
        named.inputs = vec!["model".to_owned()];
        add_seen_inputs(&mut train, &["/data/tokens.bin".to_owned()]);
        let seen = train.alternatives.iter().map(|it| it.launch.seen_inputs.len());
        assert_eq!(seen.collect::<Vec<_>>(), [1, 0]);
    }
}
