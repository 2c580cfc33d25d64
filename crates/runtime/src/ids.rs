//! Names of things: rows of tables. What comes and goes has a generation beside its row, so that a
//! name of something that is gone finds nothing.

macro_rules! row {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u16);

        impl $name {
            pub fn row(self) -> usize {
                usize::from(self.0)
            }
        }
    };
}

row!(
    /// A device of the machine: what tasks run on.
    DeviceId
);
row!(
    /// A memory of the machine: what copies of handles lie in.
    MemoryId
);
row!(
    /// Devices of one class run a kernel in the same time.
    ClassId
);
row!(
    /// A computation that tasks name.
    KernelId
);

macro_rules! generational {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name {
            pub(crate) row: u32,
            pub(crate) generation: u32,
        }

        impl $name {
            pub(crate) fn index(self) -> usize {
                self.row as usize
            }

            /// The row of its table, which another may have once this one is gone.
            pub fn row(self) -> usize {
                self.index()
            }
        }
    };
}

generational!(
    /// A task that was submitted.
    TaskId
);
generational!(
    /// Data that tasks read and write, whichever memories hold copies of it.
    HandleId
);
generational!(
    /// A copy under way from one memory to another.
    TransferId
);
