pub(crate) mod cores;
pub(crate) mod ports;
