pub(crate) mod lines;
pub(crate) mod stall;
pub(crate) mod watch;
