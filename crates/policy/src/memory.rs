//! What a policy carries from one decision to the next.

use std::any::Any;
use std::fmt;

/// Opaque to everybody but the policy that fills it. Nothing that must survive a restart belongs
/// here: that is state, and state changes by events only.
#[derive(Default)]
pub struct Memory(Option<Box<dyn Any + Send>>);

impl Memory {
    /// The policy's own memory, made empty if there is none of this type yet.
    pub(crate) fn of<T: Default + Send + 'static>(&mut self) -> &mut T {
        if !self.0.as_ref().is_some_and(|held| held.is::<T>()) {
            self.0 = Some(Box::new(T::default()));
        }
        let held = self.0.as_mut().and_then(|held| held.downcast_mut());
        held.expect("it was just made of this type")
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("empty", &self.0.is_none()).finish()
    }
}
