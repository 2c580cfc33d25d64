//! The contract between who decides and who acts: plans in, events out.
//!
//! Knows: the [`Engine`] trait, the suite every engine must pass ([`contract`]), and a [`Fake`]
//! that obeys it in virtual time.
//! Must never know: who decides and why, or what an engine is made of.

pub mod contract;
mod fake;
mod fence;
mod placeholders;
mod waker;

pub use fake::{Fake, Script};
pub use fence::GenerationFence;
pub use placeholders::{Placeholders, fill};
pub use waker::Waker;

use std::sync::Arc;

use het_core::{Event, Plan, State, Time, Topology};

/// Makes plans real and reports facts.
///
/// # Laws
/// - Every `Start` of a new generation is answered by exactly one `StageEnded` for its lease, after
///   at most one `StageStarted`; nothing is reported for a lease after its end.
/// - A gang ends as one: when a rank fails, the others are stopped, and the event names the first
///   to fail.
/// - A start that the engine cannot carry out, because its devices are not there any more or
///   something is missing that its program has no part in, ends its lease as `Refused`.
/// - `Stop` ends the lease within its grace; `Stop` for an unknown or ended lease does nothing.
/// - A plan whose generation is not newer than the last one submitted does nothing, so submitting
///   twice equals submitting once ([`GenerationFence`]).
/// - Nodes and devices come and go by `NodesJoined` and `NodeRemoved`, which name them; all other
///   ids in plans and events are rows of the topology that the engine was shown last.
/// - Of a `Prepare` nothing is reported but one `PreparationEnded` at most, before a `Start` of its
///   lease or an `Unprepare`; such a `Start` is a start like any other, also where nothing is left
///   of the preparation. An `Unprepare` leaves nothing running.
/// - After [`Engine::adopt`] a preparation of the state goes on or is reported as ended; one that
///   the state does not know leaves nothing running.
/// - After [`Engine::adopt`] every live lease of the state is answered by one `StageEnded`, as if
///   this engine had started it: what runs is supervised, what is gone is reported, what was
///   planned and never begun begins. Nothing is reported of leases that the state does not know.
/// - Times never go backwards.
pub trait Engine {
    /// Takes up what runs according to a state read from the log: at a start, after a change of the
    /// leader, or after a gap in what was heard. Makes plans of generations up to the state's old
    /// ones. The facts it finds come from [`Engine::next_event`].
    fn adopt(&mut self, state: &State);

    /// Shows the rows of nodes and devices from now on, after an event that changed them and before
    /// any plan that may name new ones. [`Engine::adopt`] shows them first.
    fn topology_changed(&mut self, topology: &Arc<Topology>);

    /// Takes a committed plan and begins to carry it out. Does not wait for it.
    fn submit(&mut self, plan: &Plan);

    /// The next fact. Waits for one until `until`, or for as long as anything can still happen
    /// where that is `None`; `None` when nothing came.
    fn next_event(&mut self, until: Option<Time>) -> Option<(Time, Event)>;

    /// Every fact that [`Engine::next_event`] gave so far is durable: what was kept in case that it
    /// has to be told again may go.
    fn committed(&mut self) {}

    /// Makes [`Engine::next_event`] return early, from any thread. An engine in virtual time never
    /// blocks and needs none.
    fn waker(&mut self) -> Waker {
        Waker::default()
    }

    /// The engine's present: a clock on real machines, virtual time in a simulation.
    fn now(&self) -> Time;
}
