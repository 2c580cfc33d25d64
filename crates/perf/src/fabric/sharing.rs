//! Links shared max-min fairly: no flow can go faster without a flow that is no faster going slower
//! (progressive filling, Bertsekas and Gallager, "Data Networks", section 6.5). When a flow comes
//! or goes only the flows that feel it are shared out again: they are grown from those on its links
//! until all others still have a bottleneck. Flows of the same path always have the same rate and
//! are handled as one, so that many on few paths cost no more than a few.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeMap, BinaryHeap};
use std::mem;
use std::ops::Range;

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
    sharing.bundles.iter().map(|bundle| sharing.rates[*bundle as usize]).collect()
}

/// Rates that differ by less than this part are the same.
const SAME: f64 = 1e-9;

/// Entries in the heap of completions for each bundle under way, at most.
const VOID_MAX: usize = 4;

/// Holders of a bundle beside the link that binds it: none, and none until a link fills.
const NONE: u32 = u32::MAX;
const OPEN: u32 = u32::MAX - 1;

/// What of a bundle, which is the flows of one path, is needed only when its rate changes.
#[derive(Debug, Clone, Default)]
struct Moving {
    /// What each of its flows got by `since` if it was there from when the bundle was empty last.
    served: f64,
    since: f64,
    /// Its flows, by what will have been served when they end.
    ends: BinaryHeap<Reverse<(Ordered, u32)>>,
    /// Whether flows came or went since all was settled last.
    changed: bool,
    /// Of its entry in the heap of completions; older entries are void.
    version: u32,
}

#[derive(Debug, Clone)]
struct Shared {
    /// What closed bundles leave.
    left: f64,
    /// The share at which it stands in the sweep; infinite if it does not.
    entered: f64,
    /// Flows that share it, and closed bundles that it binds.
    open: u32,
    bound: u32,
}

impl Shared {
    fn share(&self) -> f64 {
        match self.open {
            0 => f64::INFINITY,
            open => (self.left / f64::from(open)).max(f64::MIN_POSITIVE),
        }
    }
}

/// What the sweep reads of every bundle and link lies in arrays of its own: at each event it walks
/// over hundreds of them in no order.
struct Sharing<'a> {
    flows: &'a [Flow],
    /// Of every flow.
    bundles: Vec<u32>,
    /// Links of all bundles, one bundle behind the other, and where each begins.
    paths: Vec<u32>,
    begins: Vec<u32>,
    /// Of each flow of a bundle.
    rates: Vec<f64>,
    /// Flows under way.
    counts: Vec<u32>,
    /// What all flows of a bundle had when it was opened.
    had: Vec<f64>,
    /// The link that keeps each bundle from going faster, `NONE` or `OPEN`.
    holders: Vec<u32>,
    moving: Vec<Moving>,
    links: Vec<Shared>,
    capacities: Vec<f64>,
    /// Bundles on each link.
    members: Vec<Vec<u32>>,
    completions: BinaryHeap<Reverse<(Ordered, u32, u32)>>,
    /// Links by the share that they offered when they were entered, at least one of every open
    /// bundle: the next to fill.
    sweep: BinaryHeap<Reverse<(Ordered, u32)>>,
    /// Open bundles of which no link was entered yet.
    fresh: Vec<u32>,
    /// Bundles that were opened since all was settled last, with the rate that they had then.
    opened: Vec<(u32, f64)>,
    /// Whether a bundle is among them.
    noted: Vec<bool>,
    /// How many of them are open still.
    open: usize,
    /// Open bundles of the link that is looked at.
    filling: Vec<u32>,
    /// Links that bundles left some of, while one is filled.
    relieved: Vec<u32>,
    /// Bundles under way.
    active: usize,
}

/// A float that is not below zero: such are in order as their bits are.
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
        self.0.to_bits().cmp(&other.0.to_bits())
    }
}

impl<'a> Sharing<'a> {
    fn new(network: &Network, flows: &'a [Flow]) -> Self {
        let (mut paths, mut begins): (Vec<u32>, _) = (Vec::new(), vec![0]);
        let mut known = BTreeMap::new();
        let bundle = |flow: &Flow| {
            let finite =
                flow.path.iter().filter(|link| network.link(**link).bytes_per_s.is_finite());
            let mut path: Vec<u32> = finite.map(|link| link.0).collect();
            path.sort_unstable();
            path.dedup();
            let next = known.len() as u32;
            *known.entry(path).or_insert_with_key(|path| {
                paths.extend(path);
                begins.push(paths.len() as u32);
                next
            })
        };
        let bundles: Vec<u32> = flows.iter().map(bundle).collect();
        let count = known.len();
        let rate = |bundle: usize| match begins[bundle] == begins[bundle + 1] {
            true => f64::INFINITY,
            false => 0.0,
        };
        let capacities: Vec<f64> = network.links().iter().map(|link| link.bytes_per_s).collect();
        let link =
            |capacity: &f64| Shared { left: *capacity, entered: f64::INFINITY, open: 0, bound: 0 };
        Self {
            flows,
            bundles,
            rates: (0..count).map(rate).collect(),
            paths,
            begins,
            counts: vec![0; count],
            had: vec![0.0; count],
            holders: vec![NONE; count],
            moving: vec![Moving::default(); count],
            links: capacities.iter().map(link).collect(),
            members: vec![Vec::new(); capacities.len()],
            capacities,
            completions: BinaryHeap::new(),
            sweep: BinaryHeap::new(),
            fresh: Vec::new(),
            opened: Vec::new(),
            noted: vec![false; count],
            open: 0,
            filling: Vec::new(),
            relieved: Vec::new(),
            active: 0,
        }
    }

    /// Where the links of a bundle are in `paths`.
    fn path(&self, bundle: u32) -> Range<usize> {
        self.begins[bundle as usize] as usize..self.begins[bundle as usize + 1] as usize
    }

    /// When the next flow ends if none comes before.
    fn next_completion(&mut self) -> f64 {
        while let Some(Reverse((at, bundle, version))) = self.completions.peek() {
            if self.moving[*bundle as usize].version == *version {
                return at.0;
            }
            self.completions.pop();
        }
        f64::INFINITY
    }

    /// Takes out all that end by `now`.
    fn complete(&mut self, now: f64) -> Vec<u32> {
        let (mut ended, mut relieved) = (Vec::new(), Vec::new());
        while self.next_completion() <= now {
            let Some(Reverse((_, bundle, _))) = self.completions.pop() else { break };
            self.serve(bundle, now);
            let moving = &mut self.moving[bundle as usize];
            moving.version += 1;
            let Some(Reverse((end, first))) = moving.ends.pop() else { continue };
            ended.push(first);
            let mut gone = 1;
            while moving.ends.peek().is_some_and(|Reverse((other, _))| *other == end) {
                ended.extend(moving.ends.pop().map(|Reverse((_, flow))| flow));
                gone += 1;
            }
            self.leave(bundle, gone);
            relieved.push(bundle);
        }
        for bundle in relieved {
            for place in self.path(bundle) {
                self.open_bound(self.paths[place]);
            }
        }
        ended
    }

    /// Counts what a bundle's flows got up to now.
    fn serve(&mut self, bundle: u32, now: f64) {
        let moving = &mut self.moving[bundle as usize];
        moving.served += self.rates[bundle as usize] * (now - moving.since);
        moving.since = now;
        moving.changed = true;
    }

    /// So many flows of a bundle leave their part.
    fn leave(&mut self, bundle: u32, gone: u32) {
        let own = bundle as usize;
        let left = f64::from(gone) * self.rates[own];
        self.counts[own] -= gone;
        let empty = self.counts[own] == 0;
        for place in self.path(bundle) {
            let link = self.paths[place] as usize;
            self.links[link].left += left;
            if empty {
                let place = self.members[link].iter().position(|other| *other == bundle);
                self.members[link].swap_remove(place.expect("it was entered on its arrival"));
            }
            if self.members[link].is_empty() {
                // As it was, whatever was rounded in between.
                self.links[link].left = self.capacities[link];
            }
        }
        if empty {
            self.active -= 1;
            self.rates[own] = 0.0;
            let holder = mem::replace(&mut self.holders[own], NONE);
            if holder != NONE {
                self.links[holder as usize].bound -= 1;
            }
        }
    }

    fn arrive(&mut self, flow: u32, now: f64) {
        let bundle = self.bundles[flow as usize];
        let own = bundle as usize;
        if self.path(bundle).is_empty() {
            return;
        }
        if self.counts[own] == 0 {
            self.active += 1;
            self.moving[own].since = now;
            self.moving[own].served = 0.0;
            for place in self.path(bundle) {
                self.members[self.paths[place] as usize].push(bundle);
            }
        }
        self.serve(bundle, now);
        self.open(bundle);
        self.counts[own] += 1;
        for place in self.path(bundle) {
            self.links[self.paths[place] as usize].open += 1;
        }
        let moving = &mut self.moving[own];
        let end = moving.served + self.flows[flow as usize].wire_bytes;
        moving.ends.push(Reverse((Ordered(end), flow)));
    }

    /// Takes a bundle's rate from it until a link fills.
    fn open(&mut self, bundle: u32) {
        let own = bundle as usize;
        let holder = mem::replace(&mut self.holders[own], OPEN);
        if holder == OPEN {
            return;
        }
        if holder != NONE {
            self.links[holder as usize].bound -= 1;
        }
        let had = f64::from(self.counts[own]) * self.rates[own];
        self.had[own] = had;
        for link in &self.paths[self.path(bundle)] {
            let shared = &mut self.links[*link as usize];
            shared.left += had;
            shared.open += self.counts[own];
        }
        self.open += 1;
        self.fresh.push(bundle);
        if !mem::replace(&mut self.noted[own], true) {
            self.opened.push((bundle, self.rates[own]));
        }
    }

    /// Enters when the next flow of a bundle will end; entries that are void make way before they
    /// are the most.
    fn expect_end(&mut self, bundle: u32, at: f64) {
        let version = self.moving[bundle as usize].version;
        self.completions.push(Reverse((Ordered(at), bundle, version)));
        if self.completions.len() > VOID_MAX * (self.active + VOID_MAX) {
            let moving = &self.moving;
            self.completions
                .retain(|Reverse((_, own, version))| moving[*own as usize].version == *version);
        }
    }

    /// Opens the bundles that a link binds: it has room.
    fn open_bound(&mut self, link: u32) {
        for index in 0..self.members[link as usize].len() {
            if self.links[link as usize].bound == 0 {
                return;
            }
            let bundle = self.members[link as usize][index];
            if self.holders[bundle as usize] == link {
                self.open(bundle);
            }
        }
    }

    /// Gives every bundle that feels a change its new rate, and its time of completion.
    fn settle(&mut self, now: f64) {
        while let Some((link, share)) = self.next_to_fill() {
            match self.link_status(link, share) {
                LinkStatus::Bottleneck => self.fill(link, share),
                LinkStatus::Exceeded => self.open_greedy(link, share),
                LinkStatus::Later => self.enter(link),
            }
        }
        let mut opened = mem::take(&mut self.opened);
        for (bundle, before) in opened.drain(..) {
            self.noted[bundle as usize] = false;
            let rate = self.rates[bundle as usize];
            let moving = &mut self.moving[bundle as usize];
            if rate == before && !moving.changed {
                continue;
            }
            moving.changed = false;
            moving.served += before * (now - moving.since);
            moving.since = now;
            moving.version += 1;
            if let Some(Reverse((end, _))) = moving.ends.peek() {
                let at = now + (end.0 - moving.served).max(0.0) / rate;
                self.expect_end(bundle, at);
            }
        }
        self.opened = opened;
    }

    /// Puts a link into the sweep, unless it stands there with no more than it offers now.
    fn enter(&mut self, link: u32) {
        let shared = &mut self.links[link as usize];
        let share = shared.share();
        if share < shared.entered {
            shared.entered = share;
            self.sweep.push(Reverse((Ordered(share), link)));
        }
    }

    /// The link on a bundle's path that offers the least share.
    fn tightest(&self, bundle: u32) -> u32 {
        let mut path = self.paths[self.path(bundle)].iter();
        let mut least = *path.next().expect("one without links is never opened");
        for link in path {
            let (own, other) = (&self.links[*link as usize], &self.links[least as usize]);
            if own.left * f64::from(other.open) < other.left * f64::from(own.open) {
                least = *link;
            }
        }
        least
    }

    /// The link of the sweep that offers the least share, taken out of it.
    fn next_to_fill(&mut self) -> Option<(u32, f64)> {
        while let Some(bundle) = self.fresh.pop() {
            self.enter(self.tightest(bundle));
        }
        if self.open == 0 {
            // What is left has nothing to share out.
            for Reverse((_, link)) in self.sweep.drain() {
                self.links[link as usize].entered = f64::INFINITY;
            }
            return None;
        }
        loop {
            let mut least = self.sweep.peek_mut()?;
            let Reverse((Ordered(entered), link)) = *least;
            let shared = &mut self.links[link as usize];
            let share = shared.share();
            if shared.entered != entered {
                PeekMut::pop(least);
            } else if share.is_finite() && share > entered * (1.0 + SAME) {
                // It grew while others were served.
                shared.entered = share;
                *least = Reverse((Ordered(share), link));
            } else {
                shared.entered = f64::INFINITY;
                PeekMut::pop(least);
                if share.is_finite() {
                    return Some((link, share));
                }
            }
        }
    }

    /// Whether a link can be filled at a share. Where another link of one of its open bundles
    /// offers less, that is entered.
    fn link_status(&mut self, link: u32, share: f64) -> LinkStatus {
        let mut status = LinkStatus::Bottleneck;
        // Nothing offers less than the least share.
        let less = if share > f64::MIN_POSITIVE { share * (1.0 - SAME) } else { f64::NEG_INFINITY };
        let greedy = share * (1.0 + SAME);
        self.filling.clear();
        for bundle in &self.members[link as usize] {
            if self.holders[*bundle as usize] == OPEN {
                self.filling.push(*bundle);
            } else if self.rates[*bundle as usize] > greedy {
                status = LinkStatus::Exceeded;
            }
        }
        for index in 0..self.filling.len() {
            let bundle = self.filling[index];
            let tighter = self.paths[self.path(bundle)].iter().any(|other| {
                let other = &self.links[*other as usize];
                other.left < less * f64::from(other.open)
            });
            if tighter {
                status = LinkStatus::Later;
                self.enter(self.tightest(bundle));
            }
        }
        status
    }

    /// Opens the closed bundles on a link that have more than the share it offers, and enters it
    /// again.
    fn open_greedy(&mut self, link: u32, share: f64) {
        for index in 0..self.members[link as usize].len() {
            let bundle = self.members[link as usize][index];
            let greedy = self.rates[bundle as usize] > share * (1.0 + SAME);
            if greedy && self.holders[bundle as usize] != OPEN {
                self.open(bundle);
            }
        }
        self.enter(link);
    }

    /// Closes the open bundles of a link at its share. Where one of them takes less than it did,
    /// those that were bound there are opened.
    fn fill(&mut self, link: u32, share: f64) {
        self.open -= self.filling.len();
        self.links[link as usize].bound += self.filling.len() as u32;
        for index in 0..self.filling.len() {
            let bundle = self.filling[index];
            let own = bundle as usize;
            let before = self.rates[own];
            let unchanged = (share - before).abs() <= before * SAME;
            let rate = if unchanged { before } else { share };
            self.rates[own] = rate;
            self.holders[own] = link;
            let has = f64::from(self.counts[own]) * rate;
            let less = has < self.had[own];
            for other in &self.paths[self.path(bundle)] {
                let shared = &mut self.links[*other as usize];
                shared.left -= has;
                shared.open -= self.counts[own];
                if less && *other != link && shared.bound > 0 {
                    self.relieved.push(*other);
                }
            }
        }
        while let Some(other) = self.relieved.pop() {
            self.open_bound(other);
        }
    }
}

/// How the share that a link offers compares with the rest of the sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkStatus {
    /// No other link of its open bundles offers less: it can be filled.
    Bottleneck,
    /// The same, but closed bundles on it have more than it offers.
    Exceeded,
    /// Another link of one of its open bundles offers less.
    Later,
}
