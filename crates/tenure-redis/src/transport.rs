//! The connection to a server: bytes, frames, commands and their replies, pushed messages, and a
//! connection that is replaced when it fails. Nothing here knows of locks, but for what an error
//! means to them.

pub(crate) mod address;
pub(crate) mod commands;
pub(crate) mod connection;
pub(crate) mod contact;
pub(crate) mod dial;
pub(crate) mod exchange;
pub(crate) mod failure;
pub(crate) mod form;
mod frame;
mod handshake;
pub(crate) mod link;
pub(crate) mod meanings;
mod multiplex;
pub(crate) mod nodes;
pub(crate) mod push;
pub(crate) mod reply;
pub(crate) mod run;
pub(crate) mod sentinel;
