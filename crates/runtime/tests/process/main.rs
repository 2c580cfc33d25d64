//! Workers in processes of their own: what they compute, what is left when they are killed, and
//! what becomes of those that do not keep to the protocol.

mod hostile;
mod killed;
mod support;
