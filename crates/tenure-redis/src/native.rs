//! The native scheme: every kind of lock, with fences and queues, by scripts. It uses the transport
//! and the scripts.

mod acquire;
pub(crate) mod advice;
pub(crate) mod cluster;
mod confirmations;
pub(crate) mod counter;
pub(crate) mod durability;
mod durable;
pub(crate) mod first_contact;
pub(crate) mod foreign;
pub(crate) mod inspect;
pub(crate) mod keys;
pub(crate) mod node;
mod notes;
pub(crate) mod renew;
pub(crate) mod reply;
pub(crate) mod store;
