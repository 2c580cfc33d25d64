//! Explicit paths for flows, as a controller would program them, so that the worst link carries as
//! little as can be: flows are placed from the largest down where they disturb least, then those on
//! the worst link are moved, one by one or in chains, while that helps. Small cases are searched to
//! the end.

use std::collections::BTreeMap;
use std::rc::Rc;

use thiserror::Error;

use super::{LinkId, Network, VertexId, ecmp_choice};

/// Traffic between two vertices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    pub from: VertexId,
    pub to: VertexId,
    pub bytes_per_s: f64,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PathError {
    #[error("nothing leads from `{from}` to `{to}`")]
    Unreachable { from: String, to: String },
    #[error("{flows} flows have more paths to choose from than {CHOICES_MAX}")]
    TooManyChoices { flows: usize },
}

/// Shortest paths that are weighed for one flow, at most; of more, some from all over.
pub const PATHS_MAX: usize = 256;

/// Paths that are weighed for all flows: what the largest published cluster needs, 24,576 NICs.
pub const CHOICES_MAX: usize = 24_576 * PATHS_MAX;

/// Rounds of moving flows off the worst link, how many flows a chain of moves may displace, and how
/// many attempts at chains one round makes.
const ROUNDS_MAX: usize = 10_000;
const CHAIN_MAX: u32 = 4;
const ATTEMPTS_MAX: u32 = 20_000;

/// Cases that are searched to the end: flows of them, and steps of the search.
const SEARCH_FLOWS_MAX: usize = 64;
const SEARCH_MAX: u32 = 200_000;

/// Loads closer than this are the same.
const SAME: f64 = 1e-9;

/// What flows can choose from: the shortest paths of each, found once for a plan and every hash.
#[derive(Debug)]
pub struct Routes<'a> {
    network: &'a Network,
    demands: &'a [Demand],
    /// In the order of the demands.
    choices: Vec<Rc<Choices>>,
}

impl<'a> Routes<'a> {
    /// # Errors
    /// When an end cannot be reached, or there is more to choose from than is weighed.
    pub fn of(network: &'a Network, demands: &'a [Demand]) -> Result<Self, PathError> {
        Ok(Self { network, demands, choices: choices(network, demands)? })
    }

    /// The links of every flow, in the order of the demands.
    pub fn planned(&self) -> Vec<Vec<LinkId>> {
        let mut plan = Plan::greedy(self.network, self.demands, &self.choices);
        plan.improve();
        let small = self.demands.len() <= SEARCH_FLOWS_MAX;
        if small && plan.worst() > plan.least_possible() * (1.0 + SAME) {
            plan.search();
        }
        let chosen = plan.chosen.iter().zip(&self.choices);
        chosen.map(|(choice, choices)| choices.path(*choice).to_vec()).collect()
    }

    /// The paths that switches would take by hash, of the same shortest ones.
    pub fn hashed(&self, seed: u64) -> Vec<Vec<LinkId>> {
        let flows = self.choices.iter().enumerate();
        let path = |(flow, choices): (usize, &Rc<Choices>)| {
            choices.path(ecmp_choice(seed, flow as u64, choices.count)).to_vec()
        };
        flows.map(path).collect()
    }
}

/// The load of the worst link, 1 being all that it carries.
pub fn worst_link_load(network: &Network, demands: &[Demand], paths: &[Vec<LinkId>]) -> f64 {
    let mut loads = vec![0.0; network.links().len()];
    for (demand, path) in demands.iter().zip(paths) {
        for link in path {
            loads[link.0 as usize] += demand.bytes_per_s / network.link(*link).bytes_per_s;
        }
    }
    loads.into_iter().fold(0.0, f64::max)
}

/// All shortest paths between two vertices, no more than [`PATHS_MAX`].
pub fn shortest_paths(network: &Network, from: VertexId, to: VertexId) -> Vec<Vec<LinkId>> {
    let mut ways = Ways::to(network, &arriving(network), to);
    let choices = Choices::between(network, &mut ways, from, None);
    (0..choices.count).map(|choice| choices.path(choice).to_vec()).collect()
}

/// Shortest paths of a flow, all of one length, one behind the other.
#[derive(Debug)]
struct Choices {
    links: Vec<LinkId>,
    length: usize,
    count: usize,
}

impl Choices {
    /// Those that `ways` has, then `last` where there is one more link to the end. Of more than
    /// [`PATHS_MAX`] each so many-th is taken: the first would all keep to a few spines. Flows from
    /// the next switch take the next ones, so that together they use all there is.
    fn between(network: &Network, ways: &mut Ways, from: VertexId, last: Option<LinkId>) -> Self {
        let all = ways.counts[from.0 as usize];
        let count = all.min(PATHS_MAX as u64);
        let switch = network.leaving(from).first().map_or(from, |link| network.link(*link).to);
        let first = u64::from(switch.0) % all.div_ceil(count.max(1)).max(1);
        let mut links = Vec::new();
        for choice in 0..count {
            let place = u128::from(choice) * u128::from(all) / u128::from(count);
            ways.walk(network, from, (first + place as u64) % all, &mut links);
            links.extend(last);
        }
        let (count, all) = (count as usize, links.len());
        Self { links, length: all / count.max(1), count }
    }

    /// Of a flow that stays where it is.
    fn none_needed() -> Self {
        Self { links: Vec::new(), length: 0, count: 1 }
    }

    fn path(&self, choice: usize) -> &[LinkId] {
        &self.links[choice * self.length..][..self.length]
    }
}

fn choices(network: &Network, demands: &[Demand]) -> Result<Vec<Rc<Choices>>, PathError> {
    let arriving = arriving(network);
    let mut by_end: BTreeMap<VertexId, Vec<usize>> = BTreeMap::new();
    for (flow, demand) in demands.iter().enumerate() {
        by_end.entry(last_but_one(network, &arriving, demand.to).0).or_default().push(flow);
    }
    let mut found: BTreeMap<(VertexId, VertexId), Rc<Choices>> = BTreeMap::new();
    let mut weighed = 0;
    for (end, flows) in by_end {
        let mut ways = Ways::to(network, &arriving, end);
        for demand in flows.into_iter().map(|flow| demands[flow]) {
            if let Some(known) = found.get(&(demand.from, demand.to)) {
                weighed += known.count;
                continue;
            }
            let choices = if demand.from == demand.to {
                Choices::none_needed()
            } else {
                let last = last_but_one(network, &arriving, demand.to).1;
                Choices::between(network, &mut ways, demand.from, last)
            };
            if choices.count == 0 {
                let (from, to) = (network.name(demand.from), network.name(demand.to));
                return Err(PathError::Unreachable { from: from.to_owned(), to: to.to_owned() });
            }
            weighed += choices.count;
            if weighed > CHOICES_MAX {
                return Err(PathError::TooManyChoices { flows: demands.len() });
            }
            found.insert((demand.from, demand.to), Rc::new(choices));
        }
    }
    Ok(demands.iter().map(|demand| found[&(demand.from, demand.to)].clone()).collect())
}

/// What all paths to a vertex lead through, with the link from there: a NIC's only switch. All NICs
/// of a switch then share what leads to it.
fn last_but_one(
    network: &Network,
    arriving: &[Vec<LinkId>],
    to: VertexId,
) -> (VertexId, Option<LinkId>) {
    match arriving[to.0 as usize][..] {
        [only] => (network.link(only).from, Some(only)),
        _ => (to, None),
    }
}

fn arriving(network: &Network) -> Vec<Vec<LinkId>> {
    let mut arriving = vec![Vec::new(); network.vertices()];
    for (index, link) in network.links().iter().enumerate() {
        arriving[link.to.0 as usize].push(LinkId(index as u32));
    }
    arriving
}

/// How one vertex is reached from all others.
struct Ways {
    end: VertexId,
    /// By vertex: links to the end, and shortest paths to it.
    distances: Vec<u32>,
    counts: Vec<u64>,
    onward: BTreeMap<VertexId, Vec<(u64, LinkId)>>,
}

impl Ways {
    fn to(network: &Network, arriving: &[Vec<LinkId>], end: VertexId) -> Self {
        let mut distances = vec![u32::MAX; network.vertices()];
        let mut counts = vec![0_u64; network.vertices()];
        distances[end.0 as usize] = 0;
        counts[end.0 as usize] = 1;
        let mut reached = vec![end];
        let mut at = 0;
        while let Some(vertex) = reached.get(at).copied() {
            let (beyond, ways) = (distances[vertex.0 as usize] + 1, counts[vertex.0 as usize]);
            for link in &arriving[vertex.0 as usize] {
                let next = network.link(*link).from;
                if distances[next.0 as usize] == u32::MAX {
                    distances[next.0 as usize] = beyond;
                    reached.push(next);
                }
                if distances[next.0 as usize] == beyond {
                    let count = &mut counts[next.0 as usize];
                    *count = count.saturating_add(ways);
                }
            }
            at += 1;
        }
        Self { end, distances, counts, onward: BTreeMap::new() }
    }

    /// Adds the links of one of the shortest paths, by its place among them.
    fn walk(&mut self, network: &Network, from: VertexId, mut place: u64, links: &mut Vec<LinkId>) {
        let mut vertex = from;
        while vertex != self.end {
            let onward = self.onward(network, vertex);
            let next = onward.partition_point(|(up_to, _)| *up_to <= place);
            place -= next.checked_sub(1).map_or(0, |before| onward[before].0);
            links.push(onward[next].1);
            vertex = network.link(onward[next].1).to;
        }
    }

    /// Links that shortest paths leave by, each with the paths over it and those before it.
    fn onward(&mut self, network: &Network, vertex: VertexId) -> &[(u64, LinkId)] {
        let (distances, counts) = (&self.distances, &self.counts);
        self.onward.entry(vertex).or_insert_with(|| {
            let mut paths = 0_u64;
            let nearer = |link: &&LinkId| {
                let next = network.link(**link).to.0 as usize;
                distances[next].saturating_add(1) == distances[vertex.0 as usize]
            };
            let leaving = network.leaving(vertex).iter().filter(nearer);
            let counted = leaving.map(|link| {
                paths = paths.saturating_add(counts[network.link(*link).to.0 as usize]);
                (paths, *link)
            });
            counted.collect()
        })
    }
}

struct Plan<'a> {
    network: &'a Network,
    demands: &'a [Demand],
    choices: &'a [Rc<Choices>],
    chosen: Vec<usize>,
    /// By link: part of it that is used, and who is on it.
    loads: Vec<f64>,
    on: Vec<Vec<u32>>,
    attempts: u32,
}

impl<'a> Plan<'a> {
    fn greedy(network: &'a Network, demands: &'a [Demand], choices: &'a [Rc<Choices>]) -> Self {
        let links = network.links().len();
        let mut plan = Self {
            network,
            demands,
            choices,
            chosen: vec![0; demands.len()],
            loads: vec![0.0; links],
            on: vec![Vec::new(); links],
            attempts: 0,
        };
        let mut order: Vec<usize> = (0..demands.len()).collect();
        let size = |flow: &usize| demands[*flow].bytes_per_s;
        order.sort_by(|a, b| size(b).total_cmp(&size(a)).then(a.cmp(b)));
        for flow in order {
            let choice = plan.least_disturbing(flow);
            plan.put(flow, choice);
        }
        plan
    }

    fn least_disturbing(&self, flow: usize) -> usize {
        let costs = (0..self.choices[flow].count).map(|choice| (self.cost(flow, choice), choice));
        let least = costs.min_by(|(a, _), (b, _)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        least.map_or(0, |(_, choice)| choice)
    }

    /// The worst load along a path with the flow on it, and the sum of squares.
    fn cost(&self, flow: usize, choice: usize) -> (f64, f64) {
        let loads = self.choices[flow]
            .path(choice)
            .iter()
            .map(|link| self.loads[link.0 as usize] + self.part(flow, *link));
        loads.fold((0.0, 0.0), |(most, sum), load| (load.max(most), sum + load * load))
    }

    fn part(&self, flow: usize, link: LinkId) -> f64 {
        self.demands[flow].bytes_per_s / self.network.link(link).bytes_per_s
    }

    fn put(&mut self, flow: usize, choice: usize) {
        self.chosen[flow] = choice;
        let rows = self.choices[flow].clone();
        for link in rows.path(choice) {
            self.loads[link.0 as usize] += self.part(flow, *link);
            self.on[link.0 as usize].push(flow as u32);
        }
    }

    fn take(&mut self, flow: usize) {
        let rows = self.choices[flow].clone();
        for link in rows.path(self.chosen[flow]) {
            let on = &mut self.on[link.0 as usize];
            on.retain(|other| *other != flow as u32);
            // Sums from the start: differences would leave dust behind.
            let on = std::mem::take(on);
            self.loads[link.0 as usize] =
                on.iter().map(|other| self.part(*other as usize, *link)).sum();
            self.on[link.0 as usize] = on;
        }
    }

    fn worst(&self) -> f64 {
        self.loads.iter().copied().fold(0.0, f64::max)
    }

    /// No plan has less on its worst link: what must leave or reach a vertex, spread evenly over
    /// the links that the paths may use there.
    fn least_possible(&self) -> f64 {
        let mut ends: BTreeMap<(VertexId, bool), f64> = BTreeMap::new();
        for demand in self.demands.iter().filter(|demand| demand.from != demand.to) {
            *ends.entry((demand.from, true)).or_default() += demand.bytes_per_s;
            *ends.entry((demand.to, false)).or_default() += demand.bytes_per_s;
        }
        let loads = ends.into_iter().map(|((vertex, leaves), demand)| {
            let links = self.network.links().iter();
            let own = links.filter(|link| vertex == if leaves { link.from } else { link.to });
            demand / own.map(|link| link.bytes_per_s).sum::<f64>()
        });
        loads.fold(0.0, f64::max)
    }

    /// Moves flows off the worst links until none of those can be relieved.
    fn improve(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let worst = self.worst();
            let full = self.loads.iter().position(|load| *load >= worst * (1.0 - SAME));
            let Some(full) = full else { return };
            self.attempts = 0;
            let flows = self.on[full].clone();
            let relieved = flows
                .into_iter()
                .any(|flow| (0..=CHAIN_MAX).any(|depth| self.relieve(flow as usize, worst, depth)));
            if !relieved {
                return;
            }
        }
    }

    /// Gives the flow another path on which nothing reaches `worst`, if need be after moving up to
    /// `depth` others away. Leaves all as it was if there is none.
    fn relieve(&mut self, flow: usize, worst: f64, depth: u32) -> bool {
        let before = self.chosen[flow];
        self.take(flow);
        let below = worst * (1.0 - SAME);
        for choice in 0..self.choices[flow].count {
            self.attempts += 1;
            if choice == before || self.attempts > ATTEMPTS_MAX {
                continue;
            }
            let full = self.choices[flow]
                .path(choice)
                .iter()
                .filter(|link| self.loads[link.0 as usize] + self.part(flow, **link) >= below);
            let full: Vec<LinkId> = full.copied().collect();
            match full.as_slice() {
                [] => {
                    self.put(flow, choice);
                    return true;
                }
                [one] if depth > 0 => {
                    let displaced = self.on[one.0 as usize].clone();
                    self.put(flow, choice);
                    for other in displaced {
                        let room = self.loads[one.0 as usize] - self.part(other as usize, *one);
                        if room < below && self.relieve(other as usize, worst, depth - 1) {
                            return true;
                        }
                    }
                    self.take(flow);
                }
                _ => {}
            }
        }
        self.put(flow, before);
        false
    }

    /// Tries every combination that could be better, for as many steps as are allowed.
    fn search(&mut self) {
        let start = self.chosen.clone();
        let mut best = (self.worst(), start.clone());
        for flow in 0..self.demands.len() {
            self.take(flow);
        }
        let mut steps = 0;
        self.branch(0, 0.0, &mut best, &mut steps);
        for (flow, choice) in best.1.into_iter().enumerate() {
            self.put(flow, choice);
        }
    }

    fn branch(&mut self, flow: usize, worst: f64, best: &mut (f64, Vec<usize>), steps: &mut u32) {
        *steps += 1;
        if *steps > SEARCH_MAX || worst >= best.0 * (1.0 - SAME) {
            return;
        }
        if flow == self.demands.len() {
            *best = (worst, self.chosen.clone());
            return;
        }
        for choice in 0..self.choices[flow].count {
            let with = self.cost(flow, choice).0.max(worst);
            self.put(flow, choice);
            self.branch(flow + 1, with, best, steps);
            self.take(flow);
        }
    }
}
