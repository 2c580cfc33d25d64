//! FGD's packing experiments: its rule lands where it did, and ours is better on the whole.

use het_lab::workload::read_pods;
use het_lab::{PACKING_SEED, cluster, pack};
use het_policy::packing::PackingRule;

use crate::Data;

/// Percent of accelerators allocated by FGD when as much was asked for as there is,
/// `anchors/fgd_expected_allocation.csv`.
const PUBLISHED: [(&str, f64); 3] = [
    ("openb_pod_list_default.csv.gz", 95.227),
    ("openb_pod_list_cpu100.csv.gz", 95.208),
    ("openb_pod_list_gpuspec33.csv.gz", 87.836),
];

#[test]
fn fgd_lands_where_it_did_and_ours_is_better_on_the_whole() {
    let Some(data) = Data::find("alibaba-gpu-v2023") else { return };
    let folder = data.root.join("alibaba-gpu-v2023");
    let nodes = folder.join("openb_node_list_gpu_node.csv");
    let topology = cluster(&format!("alibaba-openb:{}", nodes.display())).expect("an inventory");
    let mut ahead = 0.0;
    for (list, published) in PUBLISHED {
        let pods = read_pods(&folder.join(list), &topology).expect("a published list");
        // Three of the ten published runs: the spread between runs is a tenth of a point.
        let percent = |rule| {
            let runs = (PACKING_SEED..PACKING_SEED + 3).map(|s| pack(&topology, &pods, rule, s));
            runs.sum::<f64>() / 3.0 * 100.0
        };
        let fgd = percent(PackingRule::LeastFragmentation);
        assert!((fgd - published).abs() < 0.7, "{list}: {fgd:.3}, published {published}");
        let ours = percent(PackingRule::SHIPPED);
        // Its step was chosen on drawn lists; on `cpu100` it is a little behind.
        assert!(ours > published - 0.35, "{list}: {ours:.3}, published {published}");
        ahead += ours - published;
    }
    assert!(ahead > 3.0, "ahead by {ahead:.2} points on all three together");
}
