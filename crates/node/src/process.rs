pub(crate) mod kill;
pub(crate) mod procfs;
pub(crate) mod ranks;
pub(crate) mod sys;
pub(crate) mod variables;
