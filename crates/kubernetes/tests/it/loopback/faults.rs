//! What goes wrong, and when: drawn for each request by what it asks and how often that was asked
//! before, so that a seed draws the same whatever order requests come in.

use std::collections::BTreeMap;

use super::ask::{Ask, Verb};
use super::draw::Draw;
use super::store::{Cut, Kind};

/// What becomes of a request that is not simply carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is refused with this code.
    Refused(u16),
    /// It is carried out, and nobody hears of it.
    Lost,
    /// The same, with this code.
    LostAs(u16),
    /// The connection breaks, and it is carried out later.
    Late,
    /// A list is so many versions old.
    Stale(u64),
}

/// How much goes wrong in a run, in percent of requests.
#[derive(Debug, Clone)]
pub struct Profile {
    pub writes: u64,
    pub late: u64,
    pub watches: u64,
    /// Watches may also end in a way after which the watcher pauses for a second or two.
    pub pauses: bool,
    pub quota: u64,
    /// Lists may be older than what was seen. No API server does that to who asks for the newest:
    /// ends may then be told too early, and all has to be well afterwards nevertheless.
    pub stale_lists: bool,
    pub crashes: u64,
    /// Jobs have objects, as those of a server do; otherwise nobody is told of them.
    pub has_objects: bool,
}

impl Profile {
    pub fn of(seed: u64) -> Self {
        let mut draw = Draw::of(seed, "profile");
        let mut pick = |items: &[u64]| draw.pick(items).unwrap_or(0);
        Self {
            writes: pick(&[0, 3, 8, 15]),
            late: pick(&[0, 0, 3, 6]),
            watches: pick(&[0, 20, 50]),
            pauses: pick(&[0, 0, 0, 1]) == 1,
            quota: pick(&[0, 3, 6]),
            stale_lists: pick(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 1]) == 1,
            crashes: pick(&[0, 1, 2, 3]),
            has_objects: pick(&[0, 1]) == 1,
        }
    }
}

/// How often each thing has happened.
pub type Tally = BTreeMap<&'static str, u64>;

#[derive(Debug)]
pub struct Faults {
    seed: u64,
    profile: Profile,
    asked: BTreeMap<String, u64>,
    /// Nothing goes wrong any more.
    is_calm: bool,
    pub tally: Tally,
}

impl Faults {
    pub fn of(seed: u64, profile: Profile) -> Self {
        Self { seed, profile, asked: BTreeMap::new(), is_calm: false, tally: Tally::new() }
    }

    pub fn calm(&mut self) {
        self.is_calm = true;
    }

    /// Whether ends may be told before they are true.
    pub fn may_be_stale(&self) -> bool {
        self.profile.stale_lists
    }

    pub fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    fn draw(&mut self, ask: &Ask) -> Draw {
        let Ask { verb, key, .. } = ask;
        let name = format!("{verb:?} {:?} {}/{}", key.kind, key.namespace, key.name);
        let asked = self.asked.entry(name.clone()).or_default();
        *asked += 1;
        Draw::of(self.seed, &format!("{name} {asked}"))
    }

    pub fn of_request(&mut self, ask: &Ask) -> Option<Fault> {
        let mut draw = self.draw(ask);
        if self.is_calm || ask.key.kind == Kind::Lease {
            return None;
        }
        let fault = match (ask.verb, ask.key.kind) {
            (Verb::Watch, _) => None,
            (Verb::List, Kind::Pod) => self.of_list(&mut draw),
            (Verb::List, _) => None,
            (Verb::Get, _) => draw.chance(self.profile.writes).then(|| transient(&mut draw)),
            _ => self.of_write(ask, &mut draw),
        }?;
        self.count(match fault {
            Fault::Refused(_) => "requests refused for a while",
            Fault::Lost | Fault::LostAs(_) => "answers lost",
            Fault::Late => "writes that arrive late",
            Fault::Stale(_) => "stale lists",
        });
        Some(fault)
    }

    fn of_list(&self, draw: &mut Draw) -> Option<Fault> {
        if self.profile.pauses && draw.chance(10) {
            return Some(transient(draw));
        }
        let is_stale = self.profile.stale_lists && draw.chance(50);
        is_stale.then(|| Fault::Stale(draw.between(1, 12)))
    }

    fn of_write(&self, ask: &Ask, draw: &mut Draw) -> Option<Fault> {
        if draw.chance(self.profile.late) {
            return Some(Fault::Late);
        }
        if !draw.chance(self.profile.writes) {
            return None;
        }
        Some(match draw.between(0, 4) {
            0 | 1 => Fault::Lost,
            2 => Fault::LostAs(504),
            // A status that changed meanwhile; elsewhere the code says that something is there.
            3 if ask.verb == Verb::Patch => Fault::Refused(409),
            _ => transient(draw),
        })
    }

    /// Whether a quota has no room for a pod, however often somebody tries.
    pub fn exceeds_quota(&mut self, pod: &str) -> bool {
        let percent = if self.is_calm { 0 } else { self.profile.quota };
        let exceeds = Draw::of(self.seed, &format!("quota {pod}")).chance(percent);
        if exceeds {
            self.count("pods refused by a quota");
        }
        exceeds
    }

    /// After how many changes a watch ends, and how.
    pub fn of_watch(&mut self, ask: &Ask) -> Option<(u64, Cut)> {
        let mut draw = self.draw(ask);
        if self.is_calm || !draw.chance(self.profile.watches) {
            return None;
        }
        let cuts: &[Cut] = match self.profile.pauses {
            true => &[Cut::End, Cut::Within, Cut::Break, Cut::Gone, Cut::Gone],
            false => &[Cut::End, Cut::Within],
        };
        let cut = draw.pick(cuts)?;
        self.count(match cut {
            Cut::End | Cut::Within => "watches that end",
            Cut::Break => "watches that break",
            Cut::Gone => "watches that are too old",
        });
        Some((draw.between(0, 20), cut))
    }
}

fn transient(draw: &mut Draw) -> Fault {
    Fault::Refused(draw.pick(&[429, 500, 503, 504]).unwrap_or(503))
}
