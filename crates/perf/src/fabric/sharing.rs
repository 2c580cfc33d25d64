//! Links shared max-min fairly: no flow can go faster without a flow that is no faster going slower
//! (progressive filling, Bertsekas and Gallager, "Data Networks", section 6.5). When a flow comes
//! or goes only the flows that feel it are shared out again: they are grown from those on its links
//! until all others still have a bottleneck.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::{LinkId, Network};

/// So many bytes along a path.
#[derive(Debug, Clone, PartialEq)]
pub struct Flow {
    pub arrival_s: f64,
    /// With all headers.
    pub wire_bytes: f64,
    /// Without a finite link in it a flow takes no time.
    pub path: Vec<LinkId>,
}

/// Seconds from arrival to completion of every flow, in their order, without latency.
pub fn completion_times(network: &Network, flows: &[Flow]) -> Vec<f64> {
    let mut order: Vec<u32> = (0..flows.len() as u32).collect();
    order.sort_by(|a, b| {
        flows[*a as usize].arrival_s.total_cmp(&flows[*b as usize].arrival_s).then(a.cmp(b))
    });
    let mut sharing = Sharing::new(network, flows);
    let mut completed = vec![0.0; flows.len()];
    let mut arriving = order.into_iter().peekable();
    loop {
        let arrival = arriving.peek().map_or(f64::INFINITY, |flow| flows[*flow as usize].arrival_s);
        let completion = sharing.next_completion();
        let now = arrival.min(completion);
        if now == f64::INFINITY {
            return completed;
        }
        if completion <= arrival {
            for flow in sharing.complete(now) {
                completed[flow as usize] = now - flows[flow as usize].arrival_s;
            }
        } else {
            while let Some(flow) = arriving.next_if(|flow| flows[*flow as usize].arrival_s <= now) {
                sharing.arrive(flow, now);
            }
        }
        sharing.settle(now);
    }
}

/// Bytes per second of each path if all are used at once and for ever.
pub fn max_min_rates(network: &Network, paths: &[Vec<LinkId>]) -> Vec<f64> {
    let flow = |path: &Vec<LinkId>| Flow { arrival_s: 0.0, wire_bytes: 1.0, path: path.clone() };
    let flows: Vec<Flow> = paths.iter().map(flow).collect();
    let mut sharing = Sharing::new(network, &flows);
    for flow in 0..flows.len() {
        sharing.arrive(flow as u32, 0.0);
    }
    sharing.settle(0.0);
    sharing.flows.iter().map(|flow| flow.rate).collect()
}

/// Rates that differ by less than this part are the same.
const SAME: f64 = 1e-9;

/// Entries in the heap of completions for each flow under way, at most.
const VOID_MAX: usize = 4;

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone)]
struct Moving {
    path: Vec<u32>,
    remaining: f64,
    since: f64,
    rate: f64,
    /// Its rate before it was opened.
    before: f64,
    open: bool,
    /// The link that keeps it from going faster.
    bottleneck: u32,
    /// Of its entry in the heap of completions; older entries are void.
    version: u32,
}

#[derive(Debug, Clone)]
struct Shared {
    capacity: f64,
    flows: Vec<u32>,
    /// What closed flows leave.
    left: f64,
    /// Flows that share it, and closed ones that it binds.
    open: u32,
    bound: u32,
    /// The share at which it stands in the heap of the sweep; infinite if it does not.
    share: f64,
}

impl Shared {
    fn share(&self) -> f64 {
        match self.open {
            0 => f64::INFINITY,
            open => (self.left / f64::from(open)).max(f64::MIN_POSITIVE),
        }
    }
}

struct Sharing {
    flows: Vec<Moving>,
    links: Vec<Shared>,
    completions: BinaryHeap<Reverse<(Ordered, u32, u32)>>,
    /// Links by the share that they offer, or less; the least is the next to fill.
    sweep: BinaryHeap<Reverse<(Ordered, u32)>>,
    /// Flows that were opened since the last time that all was settled.
    opened: Vec<u32>,
    /// Flows under way.
    active: usize,
}

/// A float that is never NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Ordered(f64);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Sharing {
    fn new(network: &Network, flows: &[Flow]) -> Self {
        let links = network.links().iter().map(|link| Shared {
            capacity: link.bytes_per_s,
            flows: Vec::new(),
            left: link.bytes_per_s,
            open: 0,
            bound: 0,
            share: f64::INFINITY,
        });
        let moving = flows.iter().map(|flow| {
            let finite =
                flow.path.iter().filter(|link| network.link(**link).bytes_per_s.is_finite());
            let mut path: Vec<u32> = finite.map(|link| link.0).collect();
            path.sort_unstable();
            path.dedup();
            Moving {
                path,
                remaining: flow.wire_bytes,
                since: 0.0,
                rate: 0.0,
                before: 0.0,
                open: false,
                bottleneck: NONE,
                version: 0,
            }
        });
        Self {
            flows: moving.collect(),
            links: links.collect(),
            completions: BinaryHeap::new(),
            sweep: BinaryHeap::new(),
            opened: Vec::new(),
            active: 0,
        }
    }

    /// When the next flow ends if none comes before.
    fn next_completion(&mut self) -> f64 {
        while let Some(Reverse((at, flow, version))) = self.completions.peek() {
            if self.flows[*flow as usize].version == *version {
                return at.0;
            }
            self.completions.pop();
        }
        f64::INFINITY
    }

    /// Takes out all that end by `now`.
    fn complete(&mut self, now: f64) -> Vec<u32> {
        let mut ended = Vec::new();
        while self.next_completion() <= now {
            let Some(Reverse((_, flow, _))) = self.completions.pop() else { break };
            self.leave(flow);
            ended.push(flow);
        }
        for flow in &ended {
            for index in 0..self.flows[*flow as usize].path.len() {
                self.open_bound(self.flows[*flow as usize].path[index]);
            }
        }
        ended
    }

    fn leave(&mut self, flow: u32) {
        self.active -= 1;
        let moving = &mut self.flows[flow as usize];
        moving.version += 1;
        if moving.bottleneck != NONE {
            self.links[moving.bottleneck as usize].bound -= 1;
        }
        for link in &moving.path {
            let shared = &mut self.links[*link as usize];
            let place = shared.flows.iter().position(|other| *other == flow);
            shared.flows.swap_remove(place.expect("it was entered on its arrival"));
            // An empty link is as it was, whatever was rounded in between.
            shared.left = match shared.flows.is_empty() {
                true => shared.capacity,
                false => shared.left + moving.rate,
            };
        }
    }

    fn arrive(&mut self, flow: u32, now: f64) {
        self.active += 1;
        let moving = &mut self.flows[flow as usize];
        moving.since = now;
        if moving.path.is_empty() {
            moving.rate = f64::INFINITY;
            return self.expect_end(flow, now);
        }
        for link in &moving.path {
            self.links[*link as usize].flows.push(flow);
        }
        self.open(flow);
    }

    /// Takes a flow's rate from it until a link fills.
    fn open(&mut self, flow: u32) {
        let moving = &mut self.flows[flow as usize];
        if moving.open {
            return;
        }
        if moving.bottleneck != NONE {
            self.links[moving.bottleneck as usize].bound -= 1;
            moving.bottleneck = NONE;
        }
        moving.open = true;
        moving.before = moving.rate;
        for link in &moving.path {
            let shared = &mut self.links[*link as usize];
            shared.left += moving.rate;
            shared.open += 1;
            let share = shared.share();
            if share < shared.share {
                shared.share = share;
                self.sweep.push(Reverse((Ordered(share), *link)));
            }
        }
        self.opened.push(flow);
    }

    /// Enters when a flow will end; entries that are void make way before they are the most.
    fn expect_end(&mut self, flow: u32, at: f64) {
        let version = self.flows[flow as usize].version;
        self.completions.push(Reverse((Ordered(at), flow, version)));
        if self.completions.len() > VOID_MAX * (self.active + VOID_MAX) {
            let flows = &self.flows;
            self.completions
                .retain(|Reverse((_, flow, version))| flows[*flow as usize].version == *version);
        }
    }

    /// Opens the flows that a link binds: it has room.
    fn open_bound(&mut self, link: u32) {
        for index in 0..self.links[link as usize].flows.len() {
            if self.links[link as usize].bound == 0 {
                return;
            }
            let flow = self.links[link as usize].flows[index];
            if self.flows[flow as usize].bottleneck == link {
                self.open(flow);
            }
        }
    }

    /// Gives every flow that feels a change its new rate, and its time of completion.
    fn settle(&mut self, now: f64) {
        while let Some((link, share)) = self.next_to_fill() {
            if !self.open_greedy(link, share) {
                self.fill(link, share);
            }
        }
        for flow in std::mem::take(&mut self.opened) {
            let moving = &mut self.flows[flow as usize];
            if moving.rate == moving.before {
                continue;
            }
            moving.remaining = (moving.remaining - moving.before * (now - moving.since)).max(0.0);
            moving.since = now;
            moving.version += 1;
            let at = now + moving.remaining / moving.rate;
            self.expect_end(flow, at);
        }
    }

    /// The link that offers the least share, taken out of the sweep.
    fn next_to_fill(&mut self) -> Option<(u32, f64)> {
        loop {
            let mut least = self.sweep.peek_mut()?;
            let Reverse((Ordered(entered), link)) = *least;
            let shared = &mut self.links[link as usize];
            let share = shared.share();
            if shared.share != entered {
                PeekMut::pop(least);
            } else if share.is_finite() && share > entered * (1.0 + SAME) {
                // Shares only grow while others are served: an old one was a lower bound.
                shared.share = share;
                *least = Reverse((Ordered(share), link));
            } else {
                shared.share = f64::INFINITY;
                PeekMut::pop(least);
                if share.is_finite() {
                    return Some((link, share));
                }
            }
        }
    }

    /// Opens the closed flows on a link that have more than the share it offers, which puts it into
    /// the sweep again; whether there are any.
    fn open_greedy(&mut self, link: u32, share: f64) -> bool {
        let mut any = false;
        for index in 0..self.links[link as usize].flows.len() {
            let flow = self.links[link as usize].flows[index];
            let moving = &self.flows[flow as usize];
            if !moving.open && moving.rate > share * (1.0 + SAME) {
                self.open(flow);
                any = true;
            }
        }
        any
    }

    /// Closes the open flows of a link at its share. Where one of them takes less than it did,
    /// those that were bound there are opened.
    fn fill(&mut self, link: u32, share: f64) {
        for index in 0..self.links[link as usize].flows.len() {
            let flow = self.links[link as usize].flows[index];
            let moving = &mut self.flows[flow as usize];
            if !moving.open {
                continue;
            }
            let unchanged = (share - moving.before).abs() <= moving.before * SAME;
            moving.rate = if unchanged { moving.before } else { share };
            moving.open = false;
            moving.bottleneck = link;
            let less = moving.rate < moving.before;
            for other in &moving.path {
                let other = &mut self.links[*other as usize];
                other.left -= moving.rate;
                other.open -= 1;
            }
            self.links[link as usize].bound += 1;
            if less {
                for place in 0..self.flows[flow as usize].path.len() {
                    let other = self.flows[flow as usize].path[place];
                    if other != link {
                        self.open_bound(other);
                    }
                }
            }
        }
    }
}
