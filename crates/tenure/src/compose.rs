//! Stores that are made of several stores.
//!
//! [`AllOf`] needs every one of its stores, a [`Quorum`](quorum::Quorum) a majority.

mod all;
pub mod quorum;

pub use self::all::AllOf;
