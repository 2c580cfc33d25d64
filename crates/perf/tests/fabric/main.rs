//! Laws of the fabric on random networks and flows.

mod paths;
mod sharing;
