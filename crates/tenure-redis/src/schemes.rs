//! The schemes of other lock libraries, and their names. They share with the native store what is
//! alike.

pub(crate) mod majority;
pub(crate) mod optimistic;
pub(crate) mod redisson;
pub(crate) mod scheme;
pub(crate) mod set_nx;
pub(crate) mod timestamp;
