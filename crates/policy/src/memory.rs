//! What a policy carries from one decision to the next.

use std::any::Any;
use std::fmt;

/// What one policy remembers, as its own type.
pub(crate) trait Remembered: Default + Clone + Send + 'static {
    /// Forgets whom it has told what, so that the next decision says why everybody waits. What it
    /// would decide stays the same.
    fn tell_again(&mut self);
}

/// Opaque to everybody but the policy that fills it.
#[derive(Default)]
pub struct Memory(Option<Box<dyn Held>>);

/// A [`Remembered`] of any type.
trait Held: Send {
    fn fork(&self) -> Box<dyn Held>;
    fn tell_again(&mut self);
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

impl<T: Remembered> Held for T {
    fn fork(&self) -> Box<dyn Held> {
        Box::new(self.clone())
    }

    fn tell_again(&mut self) {
        Remembered::tell_again(self);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl Memory {
    /// The policy's own memory, made empty if there is none of this type yet.
    pub(crate) fn of<T: Remembered>(&mut self) -> &mut T {
        if !self.0.as_ref().is_some_and(|held| (**held).as_any().is::<T>()) {
            self.0 = Some(Box::new(T::default()));
        }
        let held = self.0.as_mut().and_then(|held| (**held).as_any_mut().downcast_mut());
        held.expect("it was just made of this type")
    }

    /// A copy to put a question to: it decides as the original would, and says again why everybody
    /// waits.
    #[must_use]
    pub fn fork(&self) -> Self {
        let mut fork = Self(self.0.as_ref().map(|held| (**held).fork()));
        if let Some(held) = &mut fork.0 {
            (**held).tell_again();
        }
        fork
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("empty", &self.0.is_none()).finish()
    }
}
