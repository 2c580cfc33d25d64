pub(crate) mod owner;
pub(crate) mod record;
pub(crate) mod record_file;
pub(crate) mod restarter;
