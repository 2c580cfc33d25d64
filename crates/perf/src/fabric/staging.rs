//! From device memory to the network: straight through the PCIe switch (GPUDirect RDMA), or through
//! the memory of a CPU. All devices of a socket send at once and share what they cross max-min
//! fairly.

use super::{Link, LinkId, Network, VertexId, max_min_rates};

/// One CPU socket: PCIe switches with devices and NICs below, the root complex, memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Socket {
    pub switches: u32,
    pub devices_per_switch: u32,
    /// NICs of a switch; its devices use them in turn.
    pub nics_per_switch: u32,
    /// Of one port in one direction as it is attained: 25.6 GB/s of 16 lanes of generation 4, 51.2
    /// of generation 5 (SimAI).
    pub pcie_bytes_per_s: f64,
    pub nic_bytes_per_s: f64,
    /// Between two ports of the root complex without going through memory.
    pub peer_bytes_per_s: f64,
    /// Of the memory, reading and writing together.
    pub memory_bytes_per_s: f64,
}

/// How bytes reach the NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Device and NIC below one switch.
    SwitchPeer,
    /// Device and NIC below different switches, through the root complex.
    RootPeer,
    /// Written to the CPU's memory, read again by the NIC.
    Memory,
}

/// Bytes that go to the CPU's memory at once, and what each such piece costs to begin: an
/// asynchronous copy and its completion (estimate; measured copies begin within 5 to 10 µs).
const PIECE_BYTES: f64 = 524_288.0;
const PIECE_S: f64 = 8e-6;

/// From the request to the first byte of a direct read (estimate).
const DIRECT_S: f64 = 2e-6;

impl Socket {
    /// Bytes per second that every device sends when all send by this route.
    pub fn rates(&self, route: Route) -> Vec<f64> {
        let host = Host::new(self);
        let paths = (0..self.switches * self.devices_per_switch).map(|device| {
            let switch = device / self.devices_per_switch;
            let nic = device % self.devices_per_switch % self.nics_per_switch;
            host.path(switch, nic, route)
        });
        let device = self.pcie_bytes_per_s;
        let rates = max_min_rates(&host.network, &paths.collect::<Vec<_>>());
        rates.into_iter().map(|rate| rate.min(device)).collect()
    }

    /// Seconds until the slowest device has sent so many bytes when all send by this route.
    pub fn seconds(&self, route: Route, bytes: f64) -> f64 {
        let slowest = self.rates(route).into_iter().fold(f64::INFINITY, f64::min);
        match route {
            Route::SwitchPeer | Route::RootPeer => DIRECT_S + bytes / slowest,
            // The first piece is on its way before the NIC begins; then both go on together.
            Route::Memory => {
                let first = bytes.min(PIECE_BYTES);
                let begun = PIECE_S + first / self.pcie_bytes_per_s;
                let started = (bytes / PIECE_BYTES).ceil() * PIECE_S;
                DIRECT_S + begun + (bytes / slowest).max(started)
            }
        }
    }
}

/// The links of a socket.
struct Host {
    network: Network,
    switches: u32,
    /// By switch: its port to the root complex, there and back.
    ports: Vec<[LinkId; 2]>,
    /// By switch and NIC.
    nics: Vec<Vec<LinkId>>,
    peer: LinkId,
    memory: LinkId,
}

impl Host {
    fn new(socket: &Socket) -> Self {
        let mut network = Network::default();
        let root = network.add_vertex("root complex");
        let link = |network: &mut Network, from, to, bytes_per_s| {
            network.add_link(Link { from, to, bytes_per_s, latency_s: 0.0 })
        };
        // Both lead from the root complex to itself: what they limit is what passes through it.
        let peer = link(&mut network, root, root, socket.peer_bytes_per_s);
        let memory = link(&mut network, root, root, socket.memory_bytes_per_s / 2.0);
        let (mut ports, mut nics) = (Vec::new(), Vec::new());
        for switch in 0..socket.switches {
            let place = network.add_vertex(format!("switch {switch}"));
            let up = link(&mut network, place, root, socket.pcie_bytes_per_s);
            let down = link(&mut network, root, place, socket.pcie_bytes_per_s);
            ports.push([up, down]);
            let limit = socket.nic_bytes_per_s.min(socket.pcie_bytes_per_s);
            let below = (0..socket.nics_per_switch).map(|nic| {
                let end: VertexId = network.add_vertex(format!("nic {switch}.{nic}"));
                link(&mut network, place, end, limit)
            });
            let below = below.collect();
            nics.push(below);
        }
        Self { network, switches: socket.switches, ports, nics, peer, memory }
    }

    fn path(&self, switch: u32, nic: u32, route: Route) -> Vec<LinkId> {
        let own = switch as usize;
        let nic = nic as usize;
        match route {
            Route::SwitchPeer => vec![self.nics[own][nic]],
            Route::RootPeer => {
                let other = ((switch + 1) % self.switches) as usize;
                let through = [self.ports[own][0], self.peer, self.ports[other][1]];
                through.into_iter().chain([self.nics[other][nic]]).collect()
            }
            Route::Memory => {
                let through = [self.ports[own][0], self.memory, self.ports[own][1]];
                through.into_iter().chain([self.nics[own][nic]]).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of an HGX A100: two switches with two devices and two NICs each, 200 Gb/s.
    const HGX: Socket = Socket {
        switches: 2,
        devices_per_switch: 2,
        nics_per_switch: 2,
        pcie_bytes_per_s: 25.6e9,
        nic_bytes_per_s: 23.5e9,
        peer_bytes_per_s: 32e9,
        memory_bytes_per_s: 150e9,
    };

    fn check(route: Route, gbytes_per_s: f64) {
        for rate in HGX.rates(route) {
            assert!((rate / 1e9 - gbytes_per_s).abs() < 1e-6, "{route:?}: {rate}");
        }
    }

    #[test]
    fn what_all_cross_is_shared() {
        check(Route::SwitchPeer, 23.5);
        // Four devices between two ports of 25.6 GB/s, and through 32 GB/s.
        check(Route::RootPeer, 8.0);
        check(Route::Memory, 12.8);
    }

    #[test]
    fn straight_is_faster_at_every_size() {
        for power in 10..32 {
            let bytes = 2_f64.powi(power);
            let direct = HGX.seconds(Route::SwitchPeer, bytes);
            assert!(direct < HGX.seconds(Route::Memory, bytes), "{bytes}");
        }
    }
}
