//! This process and its workers as a machine: devices, memories, and what joins them.

use crate::drivers::CPU;
use het_core::Bytes;
use het_runtime::drivers::cpu;
use het_runtime::drivers::process::Peer;
use het_runtime::{Device, Link, Machine, MachineError, Memory, MemoryId};
use std::net::IpAddr;

/// What a socket is taken for, and the way from a machine to the network: copies wait for each
/// other by it.
const BYTES_PER_S: f64 = 1e9;
const LATENCY_NS: u64 = 50_000;
/// What a word to another machine takes where gradients are in front of it: some frames of a link
/// that they fill.
const BEHIND_OTHERS_NS: u64 = 2_000_000;

/// How a worker is joined to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Joined {
    /// By a socket to this process alone.
    Alone,
    /// To all of this machine that came over a socket in the file system.
    Locally,
    /// To all that came over TCP: from this machine, or from the one with that address.
    ByNetwork(Option<IpAddr>),
}

/// Each is a device of a class and a memory of its own, at the same place in the order of each.
///
/// # Errors
/// More workers than a machine has memories.
pub fn machine(workers: &[Peer]) -> Result<Machine, MachineError> {
    let device = |row: usize, name: String, wake| Device {
        class: name.clone(),
        name,
        memory: MemoryId(row as u16),
        wake,
    };
    let far = (1..).zip(workers).map(|(row, worker)| {
        let name = match worker.offer().class.as_str() {
            CPU => format!("worker{row}"),
            other => format!("worker{row}-{other}"),
        };
        let latency = elsewhere(worker).map_or(LATENCY_NS, |_| BEHIND_OTHERS_NS);
        device(row, name, cpu::WAKE + latency)
    });
    let own = device(0, "cpu0".to_owned(), cpu::WAKE);
    let devices: Vec<Device> = [own].into_iter().chain(far).collect();
    let host = Memory { name: "host".to_owned(), capacity: Bytes(u64::MAX) };
    let far = workers.iter().zip(&devices[1..]).map(|(worker, device)| Memory {
        name: device.name.clone(),
        capacity: Bytes(worker.offer().capacity),
    });
    let memories: Vec<Memory> = [host].into_iter().chain(far).collect();
    let joined: Vec<Joined> = workers.iter().map(|worker| joined(worker, workers)).collect();
    let (switches, links) = links(&joined);
    Machine::new(devices, memories, switches, links)
}

fn joined(worker: &Peer, workers: &[Peer]) -> Joined {
    let is_tcp = |worker: &Peer| worker.addresses().is_some();
    let mut alike = workers.iter().filter(|other| is_tcp(other) == is_tcp(worker));
    match (alike.all(|other| worker.reaches(other)), worker.addresses()) {
        (false, _) => Joined::Alone,
        (true, None) => Joined::Locally,
        (true, Some(_)) => Joined::ByNetwork(elsewhere(worker)),
    }
}

/// The address of a worker that is on another machine.
fn elsewhere(worker: &Peer) -> Option<IpAddr> {
    worker.addresses().and_then(|(own, other)| (own != other).then_some(other))
}

/// Those of one machine share its way to the network, and so does this process with those of its
/// own. Returns how many switches there are beside.
fn links(workers: &[Joined]) -> (usize, Vec<Link>) {
    let mut links = Vec::new();
    let mut join = |a, b| links.extend(Link::both(a, b, BYTES_PER_S, LATENCY_NS));
    // By address; this one is the first.
    let mut machines: Vec<Option<IpAddr>> = vec![None];
    let first = workers.len() + 1;
    for (row, worker) in (1..).zip(workers) {
        match worker {
            Joined::Alone => join(0, row),
            Joined::Locally => {
                join(0, row);
                let before = (1..row).filter(|other| workers[other - 1] == Joined::Locally);
                before.for_each(|other| join(other, row));
            }
            Joined::ByNetwork(address) => {
                let known = machines.iter().position(|machine| machine == address);
                if known.is_none() {
                    machines.push(*address);
                }
                join(row, first + known.unwrap_or(machines.len() - 1));
            }
        }
    }
    if workers.iter().all(|worker| !matches!(worker, Joined::ByNetwork(_))) {
        return (0, links);
    }
    join(0, first);
    let network = first + machines.len();
    (first..network).for_each(|machine| join(machine, network));
    (machines.len() + 1, links)
}

#[cfg(test)]
mod tests {
    use super::*;
    use het_runtime::{Reduction, ReductionShape};

    fn machine_of(workers: &[Joined]) -> Machine {
        let device = |row: u16| Device {
            name: format!("d{row}"),
            class: "any".to_owned(),
            memory: MemoryId(row),
            wake: 0,
        };
        let count = workers.len() as u16 + 1;
        let memory = |row: u16| Memory { name: format!("m{row}"), capacity: Bytes(u64::MAX) };
        let (switches, links) = links(workers);
        let devices = (0..count).map(device).collect();
        let memories = (0..count).map(memory).collect();
        Machine::new(devices, memories, switches, links).expect("all are joined")
    }

    fn shape(machine: &Machine) -> ReductionShape {
        let memories: Vec<MemoryId> = machine.memory_ids().collect();
        let add = |_, bytes: u64| 0.3 * bytes as f64;
        Reduction::plan(machine, &memories, &[4 << 20; 30], add).shape
    }

    fn at(machine: u8) -> Joined {
        Joined::ByNetwork(Some(IpAddr::from([10, 0, 0, machine])))
    }

    #[test]
    fn workers_of_other_machines_hand_their_sums_on() {
        assert_eq!(shape(&machine_of(&[at(1)])), ReductionShape::Star);
        // All would come by this machine's way to the network.
        assert_eq!(shape(&machine_of(&[at(1), at(2), at(3)])), ReductionShape::Chain);
        let shared = machine_of(&[at(1), at(1), at(2), at(2)]);
        assert_eq!(shape(&shared), ReductionShape::Chain);
        let memories = [1, 2].map(MemoryId);
        assert!(shared.is_direct(memories[0], memories[1]));
        // From one machine to the other and back: only what is between them.
        assert_eq!(shared.links_between(MemoryId(1), MemoryId(2)).count(), 2);
        assert_eq!(shared.links_between(MemoryId(1), MemoryId(3)).count(), 4);
    }

    #[test]
    fn workers_of_this_machine_add_in_this_process_while_they_are_few() {
        assert_eq!(shape(&machine_of(&[Joined::Locally; 2])), ReductionShape::Star);
        assert_ne!(shape(&machine_of(&[Joined::Locally; 8])), ReductionShape::Star);
        assert_eq!(shape(&machine_of(&[Joined::Alone; 8])), ReductionShape::Star);
    }

    #[test]
    fn what_two_workers_cannot_give_each_other_passes_through_this_process() {
        let mixed = machine_of(&[Joined::Locally, at(1), Joined::Alone, Joined::ByNetwork(None)]);
        let direct = |a, b| mixed.is_direct(MemoryId(a), MemoryId(b));
        assert!((1..=4).all(|worker| direct(0, worker) && direct(worker, 0)));
        assert!(direct(2, 4) && direct(4, 2));
        for (a, b) in [(1, 2), (1, 3), (1, 4), (3, 2), (3, 4)] {
            assert!(!direct(a, b) && !direct(b, a), "{a} {b}");
        }
    }
}
