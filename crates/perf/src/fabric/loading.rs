//! From storage to device memory: weights at the beginning, then the dataset once in each pass,
//! straight to the device (GPUDirect Storage) or through the memory of the host, and from local
//! NVMe once it has been there.
//!
//! Passes are read while the devices work: only what takes longer than their work is waited for.

use super::Route;

/// What is read, and the way it comes. Rates in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loading {
    /// Of one pass over the dataset.
    pub pass_bytes: f64,
    pub passes: f64,
    /// Read before the first step, by all nodes together.
    pub weights_bytes: f64,
    pub nodes: u32,
    /// Of the storage system, for everybody who reads.
    pub storage: f64,
    /// Of a node's cards on the storage network.
    pub cards: f64,
    pub route: Route,
    /// Of a node's memory, which the way through the host crosses twice.
    pub host_memory: f64,
    /// On a node's local NVMe that may keep the dataset, and the rate it is read at.
    pub cache_bytes: f64,
    pub cache: f64,
}

/// What reading takes. Seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadingTime {
    pub weights_s: f64,
    pub first_pass_s: f64,
    pub later_pass_s: f64,
    pub limit: LoadingLimit,
}

/// What the first pass waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadingLimit {
    Storage,
    Cards,
    HostMemory,
}

impl Loading {
    pub fn times(&self) -> LoadingTime {
        let nodes = f64::from(self.nodes.max(1));
        let host = match self.route {
            Route::SwitchPeer | Route::RootPeer => f64::INFINITY,
            Route::Memory => self.host_memory / 2.0 * nodes,
        };
        let ways = [
            (self.storage, LoadingLimit::Storage),
            (self.cards * nodes, LoadingLimit::Cards),
            (host, LoadingLimit::HostMemory),
        ];
        let least = ways.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let (rate, limit) = least.expect("there are ways");
        let kept = (self.cache_bytes * nodes / self.pass_bytes.max(1.0)).min(1.0);
        let local = kept * self.pass_bytes / (self.cache * nodes).max(1.0);
        let far = (1.0 - kept) * self.pass_bytes / rate;
        LoadingTime {
            weights_s: self.weights_bytes / rate,
            first_pass_s: self.pass_bytes / rate,
            later_pass_s: local.max(far),
            limit,
        }
    }

    /// What reading adds to a job whose devices work so long, all passes together.
    pub fn added_s(&self, work_s: f64) -> f64 {
        let times = self.times();
        let work = work_s / self.passes.max(1.0);
        let waited = |pass: f64| (pass - work).max(0.0);
        let later = (self.passes - 1.0).max(0.0);
        times.weights_s + waited(times.first_pass_s) + later * waited(times.later_pass_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 TB from 40 GB/s of storage to 16 nodes with 25 GB/s each.
    fn loading() -> Loading {
        Loading {
            pass_bytes: 10e12,
            passes: 3.0,
            weights_bytes: 400e9,
            nodes: 16,
            storage: 40e9,
            cards: 25e9,
            route: Route::SwitchPeer,
            host_memory: 300e9,
            cache_bytes: 1e12,
            cache: 6e9,
        }
    }

    #[test]
    fn the_narrowest_part_of_the_way_decides() {
        let times = loading().times();
        assert_eq!((times.weights_s, times.first_pass_s), (10.0, 250.0));
        assert_eq!(times.limit, LoadingLimit::Storage);
        let cards = Loading { cards: 1e9, ..loading() }.times();
        assert_eq!((cards.first_pass_s, cards.limit), (625.0, LoadingLimit::Cards));
        let host = Loading { route: Route::Memory, host_memory: 4e9, ..loading() }.times();
        assert_eq!((host.first_pass_s, host.limit), (312.5, LoadingLimit::HostMemory));
    }

    #[test]
    fn later_passes_come_from_the_cache_as_far_as_it_reaches() {
        let whole = loading().times();
        assert!((whole.later_pass_s - 10e12 / (16.0 * 6e9)).abs() < 1e-9);
        let half = Loading { cache_bytes: 10e12 / 32.0, ..loading() }.times();
        assert!((half.later_pass_s - 125.0).abs() < 1e-9, "the other half is read again");
        let none = Loading { cache_bytes: 0.0, ..loading() }.times();
        assert_eq!(none.later_pass_s, none.first_pass_s);
    }

    #[test]
    fn only_what_takes_longer_than_the_work_is_waited_for() {
        assert_eq!(loading().added_s(3.0 * 1_000.0), 10.0);
        let added = loading().added_s(3.0 * 200.0);
        assert!((added - (10.0 + 50.0)).abs() < 1e-9, "{added}");
    }
}
