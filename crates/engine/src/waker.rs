//! How another thread ends a wait for the next fact.

use std::fmt;
use std::sync::Arc;

/// Ends the wait of an engine's [`next_event`](crate::Engine::next_event), which then returns
/// without a fact if there is none. Cheap to clone. The default wakes nobody.
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(wake))
    }

    pub fn wake(&self) {
        (self.0)();
    }
}

impl Default for Waker {
    fn default() -> Self {
        Self::new(|| ())
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}
