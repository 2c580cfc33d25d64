//! Which plans an engine still has to carry out.

use het_core::{Generation, Plan, State};

/// Lets every plan through once, and none that is older than one that went through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GenerationFence(Generation);

impl GenerationFence {
    /// Whether the plan is new; it is not from then on.
    pub fn admits(&mut self, plan: &Plan) -> bool {
        let is_new = plan.generation > self.0;
        self.0 = self.0.max(plan.generation);
        is_new
    }

    /// Makes all plans old that the state knows.
    pub fn adopt(&mut self, state: &State) {
        self.0 = state.generation();
    }
}
