//! What a policy carries from one decision to the next.
//!
//! What it could not work out again stands in the state, as an event put it there: a decision
//! follows from state, rates, time and cadence alone. So it comes back after a restart, and a copy
//! of the state decides as the original would. What only saves work is in a [`Cache`].

mod format;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use het_core::{PolicyMemory, State};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use format::{
    exact, exact_by_stage, exact_list, millis, millis_if_any, pairs, stage, stages,
};

/// What a policy worked out before and may use again. With an empty one it decides the same.
///
/// One that was used for a state serves that state after further events too, so a copy of it serves
/// a copy of the state.
#[derive(Default)]
pub struct Cache(Option<Box<dyn Cached>>);

/// Whatever a policy keeps.
trait Cached: Any + Send {
    fn copied(&self) -> Box<dyn Cached>;
}

impl<T: Any + Clone + Send> Cached for T {
    fn copied(&self) -> Box<dyn Cached> {
        Box::new(self.clone())
    }
}

impl Cache {
    /// The policy's own, made empty if there is none of this type yet.
    pub(crate) fn of<T: Clone + Default + Send + 'static>(&mut self) -> &mut T {
        let is_own = |held: &(dyn Cached + 'static)| (held as &dyn Any).is::<T>();
        if !self.0.as_deref().is_some_and(is_own) {
            self.0 = Some(Box::new(T::default()));
        }
        let held = self.0.as_mut().map(|held| held.as_mut() as &mut dyn Any);
        held.and_then(|held| held.downcast_mut()).expect("it was just made of this type")
    }
}

impl Clone for Cache {
    fn clone(&self) -> Self {
        Self(self.0.as_ref().map(|held| held.as_ref().copied()))
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("empty", &self.0.is_none()).finish()
    }
}

/// What can stand in a state.
pub(crate) trait Stored: Clone + Default + PartialEq + Serialize + DeserializeOwned {}

impl<T: Clone + Default + PartialEq + Serialize + DeserializeOwned> Stored for T {}

/// The memory of a state as the policy's own type, read once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recalled<T> {
    value: T,
    from: Option<Arc<PolicyMemory>>,
}

impl<T: Stored> Recalled<T> {
    /// What `policy` remembers in a state. Of a shape that this version does not know it remembers
    /// nothing.
    pub fn recall(&mut self, state: &State, policy: &str) -> T {
        let own = |memory: &&Arc<PolicyMemory>| memory.policy == *policy;
        let stored = state.policy_memory().filter(own);
        let is_read = match (stored, &self.from) {
            (Some(stored), Some(from)) => Arc::ptr_eq(stored, from),
            (None, None) => true,
            _ => false,
        };
        if !is_read {
            let read = stored.and_then(|stored| serde_json::from_str(&stored.json).ok());
            self.value = read.unwrap_or_default();
            self.from = stored.cloned();
        }
        self.value.clone()
    }

    /// What the state has to be told after a decision; `None` where it knows already.
    pub fn remember(&mut self, policy: &str, value: T) -> Option<Arc<PolicyMemory>> {
        if value == self.value {
            return None;
        }
        let json = serde_json::to_string(&value).expect("memories have no keys but text");
        let memory = Arc::new(PolicyMemory { policy: policy.into(), json });
        self.value = value;
        self.from = Some(Arc::clone(&memory));
        Some(memory)
    }
}
