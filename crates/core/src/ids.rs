//! Newtype identifiers: one noun, one type, so that they cannot be mixed up.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

macro_rules! numeric_id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

numeric_id!(
    /// A machine; the index of its row in [`crate::Topology::nodes`].
    NodeId(u32)
);
numeric_id!(
    /// A device; the index of its row in [`crate::Topology::devices`].
    DeviceId(u32)
);
numeric_id!(
    /// What a user submitted; grows with every submit.
    JobId(u64)
);
numeric_id!(
    /// A numbered right to run on a placement; never reused, so a stale one is recognised.
    LeaseId(u64)
);
numeric_id!(
    /// The number of a committed plan; an engine never goes behind it.
    Generation(u64)
);
numeric_id!(
    /// The position of a stage in its job.
    StageIndex(u16)
);

impl NodeId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl DeviceId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl StageIndex {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One stage of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageKey {
    pub job: JobId,
    pub stage: StageIndex,
}

impl fmt::Display for StageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.job, self.stage)
    }
}

/// A short shared text: names of tenants, device classes, drivers. Cloning it copies no bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Name {
    fn default() -> Self {
        Self(Arc::from(""))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&*self.0, f)
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Self(Arc::from(text))
    }
}

impl From<String> for Name {
    fn from(text: String) -> Self {
        Self(Arc::from(text))
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        &*self.0 == other
    }
}

impl PartialEq<&str> for Name {
    fn eq(&self, other: &&str) -> bool {
        &*self.0 == *other
    }
}
