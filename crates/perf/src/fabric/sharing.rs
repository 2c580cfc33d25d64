//! Links shared max-min fairly: no flow can go faster without a flow that is no faster going slower
//! (progressive filling, Bertsekas and Gallager, "Data Networks", section 6.5). When a flow comes
//! or goes only the flows that feel it are shared out again: they are grown from those on its links
//! until all others still have a bottleneck.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

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

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone)]
struct Moving {
    path: Vec<u32>,
    remaining: f64,
    since: f64,
    rate: f64,
    /// Of its entry in the heap of completions; older entries are void.
    version: u32,
    /// The link that keeps it from going faster.
    bottleneck: u32,
    /// When it was last among those shared out again.
    touched: u32,
}

#[derive(Debug, Clone, Default)]
struct Shared {
    capacity: f64,
    flows: Vec<u32>,
    /// Of those being shared out: their number, and what the others leave them.
    open: u32,
    left: f64,
    touched: u32,
}

struct Sharing {
    flows: Vec<Moving>,
    links: Vec<Shared>,
    completions: BinaryHeap<Reverse<(Ordered, u32, u32)>>,
    /// Flows to be shared out again, and the links that they are on.
    open: Vec<u32>,
    touched: Vec<u32>,
    turn: u32,
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
        let links = network.links().iter();
        let links = links.map(|link| Shared { capacity: link.bytes_per_s, ..Shared::default() });
        let moving = flows.iter().map(|flow| {
            let finite =
                flow.path.iter().filter(|link| network.link(**link).bytes_per_s.is_finite());
            let mut path: Vec<u32> = finite.map(|link| link.0).collect();
            path.sort_unstable();
            path.dedup();
            let (remaining, rate) = (flow.wire_bytes, 0.0);
            let (version, bottleneck, touched) = (0, NONE, 0);
            Moving { path, remaining, since: 0.0, rate, version, bottleneck, touched }
        });
        Self {
            flows: moving.collect(),
            links: links.collect(),
            completions: BinaryHeap::new(),
            open: Vec::new(),
            touched: Vec::new(),
            turn: 1,
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
            self.flows[flow as usize].version += 1;
            self.flows[flow as usize].touched = NONE;
            ended.push(flow);
        }
        for flow in &ended {
            for index in 0..self.flows[*flow as usize].path.len() {
                let link = self.flows[*flow as usize].path[index] as usize;
                let place = self.links[link].flows.iter().position(|other| other == flow);
                self.links[link].flows.swap_remove(place.expect("it was entered on its arrival"));
                for other in 0..self.links[link].flows.len() {
                    let other = self.links[link].flows[other];
                    if self.flows[other as usize].bottleneck == link as u32 {
                        self.open_flow(other);
                    }
                }
            }
        }
        ended
    }

    fn arrive(&mut self, flow: u32, now: f64) {
        for index in 0..self.flows[flow as usize].path.len() {
            let link = self.flows[flow as usize].path[index];
            self.links[link as usize].flows.push(flow);
        }
        self.flows[flow as usize].since = now;
        self.open_flow(flow);
    }

    fn open_flow(&mut self, flow: u32) {
        if self.flows[flow as usize].touched == self.turn
            || self.flows[flow as usize].touched == NONE
        {
            return;
        }
        self.flows[flow as usize].touched = self.turn;
        self.open.push(flow);
    }

    /// Gives every flow that feels a change its new rate, and its time of completion.
    fn settle(&mut self, now: f64) {
        let mut before = Vec::with_capacity(self.open.len());
        let mut known = 0;
        while known < self.open.len() {
            let new = self.open[known..].iter();
            before.extend(new.map(|flow| self.flows[*flow as usize].rate));
            known = self.open.len();
            self.fill();
            self.open_disturbed();
        }
        for (flow, before) in std::mem::take(&mut self.open).into_iter().zip(before) {
            let moving = &mut self.flows[flow as usize];
            if moving.rate == before {
                continue;
            }
            if before > 0.0 {
                moving.remaining = (moving.remaining - before * (now - moving.since)).max(0.0);
            }
            moving.since = now;
            moving.version += 1;
            let at = now + moving.remaining / moving.rate;
            self.completions.push(Reverse((Ordered(at), flow, moving.version)));
        }
        self.turn += 1;
    }

    /// Progressive filling of the open flows with what the others leave.
    fn fill(&mut self) {
        self.count_what_is_left();
        let mut shares: BinaryHeap<Reverse<(Ordered, u32)>> = BinaryHeap::new();
        for link in &self.touched {
            let shared = &self.links[*link as usize];
            shares.push(Reverse((Ordered(shared.left / f64::from(shared.open)), *link)));
        }
        for flow in &self.open {
            let moving = &mut self.flows[*flow as usize];
            moving.bottleneck = NONE;
            moving.rate = if moving.path.is_empty() { f64::INFINITY } else { 0.0 };
        }
        while let Some(Reverse((share, link))) = shares.pop() {
            let shared = &self.links[link as usize];
            if shared.open == 0 {
                continue;
            }
            // Shares only grow while others are served, so that an old one is a lower bound.
            let current = shared.left / f64::from(shared.open);
            if current > share.0 * (1.0 + SAME) {
                shares.push(Reverse((Ordered(current), link)));
                continue;
            }
            let rate = current.max(f64::MIN_POSITIVE);
            for index in 0..self.links[link as usize].flows.len() {
                let flow = self.links[link as usize].flows[index] as usize;
                if self.flows[flow].touched != self.turn || self.flows[flow].bottleneck != NONE {
                    continue;
                }
                self.flows[flow].bottleneck = link;
                self.flows[flow].rate = rate;
                for other in &self.flows[flow].path {
                    let other = &mut self.links[*other as usize];
                    other.open -= 1;
                    other.left = (other.left - rate).max(0.0);
                }
            }
        }
    }

    fn count_what_is_left(&mut self) {
        for link in &self.touched {
            self.links[*link as usize].touched = 0;
        }
        self.touched.clear();
        for flow in &self.open {
            for link in &self.flows[*flow as usize].path {
                let shared = &mut self.links[*link as usize];
                if shared.touched != self.turn {
                    shared.touched = self.turn;
                    self.touched.push(*link);
                }
            }
        }
        for link in &self.touched {
            let (mut open, mut left) = (0, self.links[*link as usize].capacity);
            for flow in &self.links[*link as usize].flows {
                let moving = &self.flows[*flow as usize];
                match moving.touched == self.turn {
                    true => open += 1,
                    false => left -= moving.rate,
                }
            }
            let shared = &mut self.links[*link as usize];
            (shared.open, shared.left) = (open, left.max(0.0));
        }
    }

    /// Opens the flows that no longer have a bottleneck, or take from an open one what is its due.
    fn open_disturbed(&mut self) {
        for index in 0..self.touched.len() {
            let link = self.touched[index];
            let shared = &self.links[link as usize];
            let (mut most_open, mut least_bound) = (0.0_f64, f64::INFINITY);
            for flow in &shared.flows {
                let moving = &self.flows[*flow as usize];
                if moving.touched == self.turn {
                    most_open = most_open.max(moving.rate);
                    if moving.bottleneck == link {
                        least_bound = least_bound.min(moving.rate);
                    }
                }
            }
            let slack = shared.left > shared.capacity * SAME;
            for place in 0..self.links[link as usize].flows.len() {
                let flow = self.links[link as usize].flows[place];
                let moving = &self.flows[flow as usize];
                if moving.touched == self.turn {
                    continue;
                }
                let unbound =
                    moving.bottleneck == link && (slack || most_open > moving.rate * (1.0 + SAME));
                if unbound || moving.rate > least_bound * (1.0 + SAME) {
                    self.open_flow(flow);
                }
            }
        }
    }
}
