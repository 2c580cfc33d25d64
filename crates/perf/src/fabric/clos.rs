//! Fabrics of leaves and spines: in pods, by rails, in two planes.

use super::{Link, Network, VertexId};

/// A network between NICs.
#[derive(Debug, Clone, PartialEq)]
pub struct Clos {
    pub network: Network,
    /// Vertices that flows begin and end at, in the order of hosts: NICs, or their ports.
    pub nics: Vec<VertexId>,
}

/// Pods of leaves and spines; cores above the spines if there are several pods.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpineLeaf {
    pub pods: u32,
    pub leaves_per_pod: u32,
    pub nics_per_leaf: u32,
    pub spines_per_pod: u32,
    /// Above the spines of the same place in every pod. As many as a pod has leaves make cables to
    /// cores as fast as those to leaves, so that whatever goes up one can go on over the other.
    pub cores_per_spine: u32,
    pub nic_bytes_per_s: f64,
    /// What the NICs of a leaf could send over what its uplinks carry: 1 blocks nothing.
    pub oversubscription: f64,
    /// Of every cable, with the switch behind it.
    pub latency_s: f64,
}

/// Rails: NICs of the same place in their nodes share leaves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rail {
    pub nodes: u32,
    pub rails: u32,
    pub nodes_per_leaf: u32,
    pub spines: u32,
    pub nic_bytes_per_s: f64,
    pub oversubscription: f64,
    pub latency_s: f64,
}

/// NICs in the order of pods, then leaves.
pub fn spine_leaf(of: &SpineLeaf) -> Clos {
    let mut network = Network::default();
    let nics = add_nics(&mut network, of, "");
    add_plane(&mut network, &nics, of, "");
    Clos { network, nics }
}

/// The same twice over: every NIC has a port of half its speed in each of two planes. Flows begin
/// and end at ports, for nothing leads from one plane to the other: those of the first plane in the
/// order of NICs, then those of the second.
pub fn dual_plane(of: &SpineLeaf) -> Clos {
    let half = SpineLeaf { nic_bytes_per_s: of.nic_bytes_per_s / 2.0, ..*of };
    let mut network = Network::default();
    let mut nics = Vec::new();
    for plane in ["a ", "b "] {
        let ports = add_nics(&mut network, of, plane);
        add_plane(&mut network, &ports, &half, plane);
        nics.extend(ports);
    }
    Clos { network, nics }
}

/// NICs in the order of nodes, then rails.
pub fn rail(of: &Rail) -> Clos {
    let mut network = Network::default();
    let nics = (0..of.nodes * of.rails)
        .map(|nic| network.add_vertex(format!("nic {}.{}", nic / of.rails, nic % of.rails)))
        .collect::<Vec<_>>();
    let spines: Vec<VertexId> =
        (0..of.spines).map(|spine| network.add_vertex(format!("spine {spine}"))).collect();
    let latency_s = of.latency_s;
    for segment in 0..of.nodes.div_ceil(of.nodes_per_leaf) {
        for rail in 0..of.rails {
            let leaf = network.add_vertex(format!("leaf {segment}.{rail}"));
            let last = ((segment + 1) * of.nodes_per_leaf).min(of.nodes);
            for node in segment * of.nodes_per_leaf..last {
                let from = nics[(node * of.rails + rail) as usize];
                let bytes_per_s = of.nic_bytes_per_s;
                network.add_cable(Link { from, to: leaf, bytes_per_s, latency_s });
            }
            let below = f64::from(of.nodes_per_leaf) * of.nic_bytes_per_s;
            let bytes_per_s = below / of.oversubscription / f64::from(of.spines);
            for spine in &spines {
                network.add_cable(Link { from: leaf, to: *spine, bytes_per_s, latency_s });
            }
        }
    }
    Clos { network, nics }
}

fn add_nics(network: &mut Network, of: &SpineLeaf, plane: &str) -> Vec<VertexId> {
    let nics = 0..of.pods * of.leaves_per_pod * of.nics_per_leaf;
    nics.map(|nic| network.add_vertex(format!("{plane}nic {nic}"))).collect()
}

fn add_plane(network: &mut Network, nics: &[VertexId], of: &SpineLeaf, plane: &str) {
    let latency_s = of.latency_s;
    let below = f64::from(of.nics_per_leaf) * of.nic_bytes_per_s;
    let uplink = below / of.oversubscription / f64::from(of.spines_per_pod);
    let several = of.pods > 1;
    let cores: Vec<Vec<VertexId>> = (0..of.spines_per_pod * u32::from(several))
        .map(|spine| {
            let core = |core| network.add_vertex(format!("{plane}core {spine}.{core}"));
            (0..of.cores_per_spine).map(core).collect()
        })
        .collect();
    let core_link = uplink * f64::from(of.leaves_per_pod) / f64::from(of.cores_per_spine.max(1));
    let mut unplaced = nics.iter();
    for pod in 0..of.pods {
        let mut spines = Vec::new();
        for place in 0..of.spines_per_pod {
            let spine = network.add_vertex(format!("{plane}spine {pod}.{place}"));
            for core in cores.get(place as usize).into_iter().flatten() {
                let (from, to, bytes_per_s) = (spine, *core, core_link);
                network.add_cable(Link { from, to, bytes_per_s, latency_s });
            }
            spines.push(spine);
        }
        for place in 0..of.leaves_per_pod {
            let leaf = network.add_vertex(format!("{plane}leaf {pod}.{place}"));
            for nic in unplaced.by_ref().take(of.nics_per_leaf as usize) {
                let (from, to, bytes_per_s) = (*nic, leaf, of.nic_bytes_per_s);
                network.add_cable(Link { from, to, bytes_per_s, latency_s });
            }
            for spine in &spines {
                let (from, to, bytes_per_s) = (leaf, *spine, uplink);
                network.add_cable(Link { from, to, bytes_per_s, latency_s });
            }
        }
    }
}
