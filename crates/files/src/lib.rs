//! Files that somebody else controls: a job may replace any file that it reaches, at any time, by
//! a FIFO, a device, a link, a directory or a petabyte of nothing.
//!
//! Nothing here waits for whoever made a file, follows a link that it was not told to follow, reads
//! or lists without a bound, or descends deeper than a bound of memory. `cargo xtask tidy` finds
//! code that opens such files in another way.
//!
//! Knows: how to open, read, list, replace and remove such files.
//! Must never know: what is in them.

mod list;
mod open;
mod remove;
mod replace;
mod shortage;
mod usage;

pub use list::{Entry, Kind, Listing, is_directory, is_file, kind, list};
pub use open::{Links, Refused, head, modify, open, read, tail};
pub use remove::remove_tree;
pub use replace::{create_private, replace, replace_private};
pub use shortage::is_shortage;
pub use usage::{Usage, usage};
