//! What the events of a log add up to.

use std::sync::Arc;

use het_core::{Event, State, Time, Topology};
use het_perf::Rates;

use crate::learn;

/// State and learned speeds after some events: what a loop goes on from.
#[derive(Debug, Clone)]
pub struct Past {
    pub state: State,
    pub rates: Rates,
}

impl Past {
    /// Before the first event.
    pub fn new(topology: Arc<Topology>) -> Self {
        Self { state: State::new(topology), rates: Rates::default() }
    }

    /// Takes in the next event.
    pub fn apply(&mut self, at: Time, event: &Event) {
        learn::from_event(&mut self.rates, &self.state, at, event);
        self.state.apply(at, event);
    }
}
