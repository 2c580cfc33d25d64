use std::sync::Arc;

use het_core::Time;

use super::*;

fn row(name: &str, has: &[(&str, u64)], labels: &[(&str, &str)]) -> NodeRow {
    let allocatable = has.iter().map(|(name, count)| ((*name).to_owned(), count * 1_000));
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    NodeRow {
        name: name.into(),
        allocatable: allocatable.collect(),
        labels: labels.collect(),
        is_ready: true,
        is_cordoned: false,
        taints: Vec::new(),
    }
}

const H100: (&str, &str) = ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3");

fn gpu_node(name: &str) -> NodeRow {
    let has = [("cpu", 96), ("memory", 1 << 40), ("nvidia.com/gpu", 8), ("pods", 110)];
    row(name, &has, &[H100, ("fabric.topograph.run/tier-0", "leaf-1"), (ARCHITECTURE, "amd64")])
}

/// An inventory, and the state that hears its news.
struct Told {
    inventory: Inventory,
    state: State,
}

impl Told {
    fn new(rows: Vec<NodeRow>) -> Self {
        let state = State::new(Arc::default());
        let mut inventory = Inventory::default();
        inventory.adopt(&state);
        rows.into_iter().for_each(|row| inventory.see(row));
        let mut told = Self { inventory, state };
        told.hear();
        told
    }

    /// Commits news until there is none.
    fn hear(&mut self) -> Vec<Event> {
        let mut heard = Vec::new();
        loop {
            let news = self.inventory.news(self.state.topology());
            if news.is_empty() {
                return heard;
            }
            for event in news {
                self.state.apply(Time::ZERO, &event);
                heard.push(event);
            }
            self.inventory.topology_changed(&Arc::clone(self.state.topology()));
        }
    }

    fn free(&self, device: &str) -> u32 {
        let topology = self.state.topology();
        let id = topology.device_ids().find(|id| topology.device(*id).name == *device);
        self.state.free().share(id.expect("it is there")).whole_units()
    }
}

#[test]
fn a_node_is_its_cores_and_a_slot_for_each_device() {
    let told = Told::new(vec![gpu_node("a")]);
    let topology = told.state.topology();
    topology.validate().expect("it is whole");
    let names: Vec<&str> = topology.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names[..3], ["cpu0", "nvidia.com/gpu/0", "nvidia.com/gpu/1"]);
    assert_eq!(names.len(), 9);
    assert_eq!(topology.classes[topology.devices[1].class].id, "h100-sxm5-80");
    assert_eq!(topology.nodes[0].rack, "leaf-1");
    assert_eq!(told.free("cpu0"), 96);
}

#[test]
fn unlike_cards_of_one_vendor_are_classes_of_their_own() {
    let node = |name, chip| row(name, &[("cpu", 4), ("huawei.com/Ascend910", 8)], &[chip]);
    let chip = |word| ("node.kubernetes.io/npu.chip.name", word);
    let told = Told::new(vec![node("a", chip("910B3")), node("b", chip("910B4"))]);
    let ids: Vec<&str> = told.state.topology().classes.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(ids, ["cpu-any", "ascend-910b", "ascend-910b4"]);
}

#[test]
fn what_others_take_is_not_free_until_they_give_it_back() {
    let mut told = Told::new(vec![gpu_node("a")]);
    let pod = Requests::from([("nvidia.com/gpu".to_owned(), 3_000), ("cpu".to_owned(), 1_500)]);
    let node = "a".into();
    told.inventory.others_change(&node, None, Some(&pod));
    told.hear();
    let free = |told: &Told| (0..8).map(|slot| told.free(&format!("nvidia.com/gpu/{slot}"))).sum();
    assert_eq!((free(&told), told.free("cpu0")), (5u32, 94));
    told.inventory.others_change(&node, Some(&pod), None);
    told.hear();
    assert_eq!((free(&told), told.free("cpu0")), (8u32, 96));
}

#[test]
fn what_others_take_beside_devices_is_not_free_either() {
    let mut told = Told::new(vec![gpu_node("a")]);
    let (node, id) = ("a".into(), NodeId(0));
    let all = told.state.host_free(id);
    assert_eq!((all.memory, all.tasks), (Bytes(1 << 40), 110));
    let pod = Requests::from([(MEMORY.to_owned(), (1 << 30) * 1_000), (PODS.to_owned(), 1_000)]);
    told.inventory.others_change(&node, None, Some(&pod));
    told.inventory.others_change(&node, None, Some(&pod));
    assert_eq!(told.hear().len(), 1);
    let free = told.state.host_free(id);
    assert_eq!((free.memory, free.tasks), (Bytes((1 << 40) - (2 << 30)), 108));
    told.inventory.adopt(&told.state);
    assert_eq!(told.hear(), [], "whoever takes over knows it");
    told.inventory.others_change(&node, Some(&pod), None);
    told.inventory.others_change(&node, Some(&pod), None);
    told.hear();
    assert_eq!(told.state.host_free(id), all);
}

#[test]
fn a_node_that_is_cordoned_or_not_ready_takes_nothing_new() {
    let mut told = Told::new(vec![gpu_node("a")]);
    let id = NodeId(0);
    told.inventory.see(NodeRow { is_cordoned: true, ..gpu_node("a") });
    assert_eq!(told.hear(), [Event::NodeSuspected { node: id }]);
    told.inventory.see(NodeRow { is_ready: false, ..gpu_node("a") });
    assert_eq!(told.hear(), [Event::NodeLost { node: id }, Event::NodeCleared { node: id }]);
    told.inventory.see(gpu_node("a"));
    assert_eq!(told.hear(), [Event::NodeReturned { node: id }]);
    let taint = |key: &str| NodeRow { taints: vec![key.to_owned()], ..gpu_node("a") };
    told.inventory.see(taint("nvidia.com/gpu"));
    assert_eq!(told.hear(), []);
    told.inventory.see(taint("node-role.kubernetes.io/control-plane"));
    assert_eq!(told.hear(), [Event::NodeSuspected { node: id }]);
}

#[test]
fn a_node_that_is_deleted_is_removed_and_may_come_back() {
    let mut told = Told::new(vec![gpu_node("a"), gpu_node("b")]);
    told.inventory.see_gone(&"a".into());
    assert_eq!(told.hear(), [Event::NodeRemoved { name: "a".into() }]);
    told.inventory.see(gpu_node("a"));
    told.hear();
    assert_eq!(told.free("cpu0"), 96);
}

#[test]
fn a_state_that_is_adopted_hears_what_changed_meanwhile() {
    let mut told = Told::new(vec![gpu_node("a"), gpu_node("b")]);
    let mut next = Inventory::default();
    next.adopt(&told.state);
    next.see(NodeRow { is_cordoned: true, ..gpu_node("b") });
    told.inventory = next;
    let heard = told.hear();
    assert!(heard.contains(&Event::NodeRemoved { name: "a".into() }), "{heard:?}");
    assert!(heard.contains(&Event::NodeSuspected { node: NodeId(1) }), "{heard:?}");
    assert!(!heard.iter().any(|event| matches!(event, Event::CapacityTaken { .. })), "{heard:?}");
}

#[test]
fn what_is_not_understood_is_named_and_not_offered() {
    let node = row("a", &[("cpu", 4), ("example.com/fpga", 2), ("hugepages-2Mi", 1)], &[]);
    let told = Told::new(vec![node]);
    assert_eq!(told.inventory.not_understood(), [("example.com/fpga".to_owned(), 1)].into());
    assert_eq!(told.state.topology().devices.len(), 1);
}

#[test]
fn a_label_is_the_largest_part_of_the_network_that_lies_within_one_value() {
    let node = |name: &str, rack: &str, zone: &str| {
        let labels = [
            H100,
            ("fabric.topograph.run/tier-0", rack),
            ("fabric.topograph.run/tier-1", "spine"),
            ("zone", zone),
        ];
        row(name, &[("nvidia.com/gpu", 8), ("cpu", 8)], &labels)
    };
    let level = |rows: Vec<NodeRow>, label: &str| {
        let mut inventory = Inventory::default();
        rows.into_iter().for_each(|row| inventory.see(row));
        inventory.level(label, "nvidia.com/gpu")
    };
    let of_racks = || vec![node("a", "r1", "x"), node("b", "r1", "x"), node("c", "r2", "y")];
    assert_eq!(level(of_racks(), "zone"), Some(Domain::Rack));
    assert_eq!(level(of_racks()[..2].to_vec(), "zone"), Some(Domain::Pod));
    assert_eq!(level(of_racks(), "kubernetes.io/hostname"), Some(Domain::Node));
    let across = vec![node("a", "r1", "x"), node("b", "r1", "y")];
    assert_eq!(level(across, "zone"), None, "one rack lies in two");
    // Nodes without the devices have no part in it.
    let others = [of_racks(), vec![row("d", &[("cpu", 8)], &[])]].concat();
    assert_eq!(level(others, "zone"), Some(Domain::Rack));
    assert_eq!(level([of_racks(), vec![gpu_node("e")]].concat(), "zone"), None);
}
