//! Explicit paths for flows, as a controller would program them, so that the worst link carries as
//! little as can be: flows are placed from the largest down where they disturb least, then those on
//! the worst link are moved, one by one or in chains, while that helps. Small cases are searched to
//! the end.

use std::collections::{BTreeMap, VecDeque};

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
}

/// Shortest paths that are weighed for one flow, at most; of more the first are taken.
pub const PATHS_MAX: usize = 256;

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

/// The links of every flow, in the order of the demands; shortest paths only.
///
/// # Errors
/// When an end cannot be reached.
pub fn plan_paths(network: &Network, demands: &[Demand]) -> Result<Vec<Vec<LinkId>>, PathError> {
    let choices = choices(network, demands)?;
    let mut plan = Plan::greedy(network, demands, &choices);
    plan.improve();
    let small = demands.len() <= SEARCH_FLOWS_MAX;
    if small && plan.worst() > plan.least_possible() * (1.0 + SAME) {
        plan.search();
    }
    let chosen = plan.chosen.iter().enumerate();
    Ok(chosen.map(|(flow, choice)| plan.choices[flow][*choice].clone()).collect())
}

/// The paths that switches would take by hash, of the same shortest ones.
///
/// # Errors
/// When an end cannot be reached.
pub fn hashed_paths(
    network: &Network,
    demands: &[Demand],
    seed: u64,
) -> Result<Vec<Vec<LinkId>>, PathError> {
    let choices = choices(network, demands)?;
    let flows = choices.iter().enumerate();
    let path =
        |(flow, paths): (usize, &Rows)| paths[ecmp_choice(seed, flow as u64, paths.len())].clone();
    Ok(flows.map(path).collect())
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
    let arriving = arriving(network);
    paths_along(network, from, to, &distances_to(network, &arriving, to))
}

type Rows = std::rc::Rc<Vec<Vec<LinkId>>>;

fn choices(network: &Network, demands: &[Demand]) -> Result<Vec<Rows>, PathError> {
    let arriving = arriving(network);
    let mut distances: BTreeMap<VertexId, Vec<u32>> = BTreeMap::new();
    let mut known: BTreeMap<(VertexId, VertexId), Rows> = BTreeMap::new();
    let rows = demands.iter().map(|demand| {
        if let Some(rows) = known.get(&(demand.from, demand.to)) {
            return Ok(rows.clone());
        }
        let far = || distances_to(network, &arriving, demand.to);
        let distances = distances.entry(demand.to).or_insert_with(far);
        let rows = paths_along(network, demand.from, demand.to, distances);
        if rows.is_empty() {
            let (from, to) = (network.name(demand.from), network.name(demand.to));
            return Err(PathError::Unreachable { from: from.to_owned(), to: to.to_owned() });
        }
        let rows = Rows::new(rows);
        known.insert((demand.from, demand.to), rows.clone());
        Ok(rows)
    });
    rows.collect()
}

fn arriving(network: &Network) -> Vec<Vec<VertexId>> {
    let mut arriving = vec![Vec::new(); network.vertices()];
    for link in network.links() {
        arriving[link.to.0 as usize].push(link.from);
    }
    arriving
}

/// Links to the end from every vertex.
fn distances_to(network: &Network, arriving: &[Vec<VertexId>], to: VertexId) -> Vec<u32> {
    let mut distances = vec![u32::MAX; network.vertices()];
    distances[to.0 as usize] = 0;
    let mut reached = VecDeque::from([to]);
    while let Some(vertex) = reached.pop_front() {
        let beyond = distances[vertex.0 as usize] + 1;
        for next in &arriving[vertex.0 as usize] {
            if distances[next.0 as usize] == u32::MAX {
                distances[next.0 as usize] = beyond;
                reached.push_back(*next);
            }
        }
    }
    distances
}

fn paths_along(
    network: &Network,
    from: VertexId,
    to: VertexId,
    distances: &[u32],
) -> Vec<Vec<LinkId>> {
    let mut found = Vec::new();
    if distances[from.0 as usize] == u32::MAX {
        return found;
    }
    let mut open = vec![(from, Vec::new())];
    while let Some((vertex, path)) = open.pop() {
        if vertex == to {
            found.push(path);
            if found.len() == PATHS_MAX {
                break;
            }
            continue;
        }
        for link in network.leaving(vertex).iter().rev() {
            let next = network.link(*link).to;
            if distances[next.0 as usize].saturating_add(1) == distances[vertex.0 as usize] {
                let longer = path.iter().copied().chain([*link]).collect();
                open.push((next, longer));
            }
        }
    }
    found
}

struct Plan<'a> {
    network: &'a Network,
    demands: &'a [Demand],
    choices: &'a [Rows],
    chosen: Vec<usize>,
    /// By link: part of it that is used, and who is on it.
    loads: Vec<f64>,
    on: Vec<Vec<u32>>,
    attempts: u32,
}

impl<'a> Plan<'a> {
    fn greedy(network: &'a Network, demands: &'a [Demand], choices: &'a [Rows]) -> Self {
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
        let costs = (0..self.choices[flow].len()).map(|choice| (self.cost(flow, choice), choice));
        let least = costs.min_by(|(a, _), (b, _)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        least.map_or(0, |(_, choice)| choice)
    }

    /// The worst load along a path with the flow on it, and the sum of squares.
    fn cost(&self, flow: usize, choice: usize) -> (f64, f64) {
        let loads = self.choices[flow][choice]
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
        for link in &rows[choice] {
            self.loads[link.0 as usize] += self.part(flow, *link);
            self.on[link.0 as usize].push(flow as u32);
        }
    }

    fn take(&mut self, flow: usize) {
        let rows = self.choices[flow].clone();
        for link in &rows[self.chosen[flow]] {
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
        for choice in 0..self.choices[flow].len() {
            self.attempts += 1;
            if choice == before || self.attempts > ATTEMPTS_MAX {
                continue;
            }
            let full = self.choices[flow][choice]
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
        for choice in 0..self.choices[flow].len() {
            let with = self.cost(flow, choice).0.max(worst);
            self.put(flow, choice);
            self.branch(flow + 1, with, best, steps);
            self.take(flow);
        }
    }
}
