//! The event store: what it keeps, what is left after power losses, and snapshots.

mod damage;
mod disk;
mod golden;
mod outage;
mod snapshots;
mod store;
mod torn;
