pub(crate) mod container;
pub(crate) mod environment;
pub(crate) mod spawn;
pub(crate) mod spec;
pub(crate) mod template;
