//! The command line, driven as a user drives it: the real binary in a home of its own.

#[macro_use]
mod support;

mod bad_input;
mod book;
mod commands;
mod conditions;
mod crash;
mod drivers;
mod elastic;
mod faults;
mod full_disk;
mod hostile;
mod inputs;
mod kubernetes;
mod logged;
mod network;
mod operated;
mod secrets;
mod served;
mod sim;
mod sizes;
mod slowness;
mod store;
mod streams;
mod surroundings;
mod terminal;
mod topo;
mod training;
mod unanswered;
mod users;
mod warm;
