pub(crate) mod tracker;
pub(crate) mod watch;
