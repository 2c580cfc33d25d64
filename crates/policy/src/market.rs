//! How much of which device class for whom: what everybody wants, what remains of it, at which
//! prices demand fits supply, and what an exchange brings.

mod demand;
mod exchange;
mod prices;
mod remaining;

pub(crate) use demand::{Book, Demand, Demands, Offer, alone_seconds, demand, density, offer_rate};
pub(crate) use exchange::{Party, exchange};
pub(crate) use prices::{Horizon, Work, clearing, hand_out, horizon};
pub(crate) use remaining::Remaining;
