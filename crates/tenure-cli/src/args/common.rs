//! Flags that commands share.

use std::ffi::OsString;

use clap::Args;

use super::help::STORE_HELP;

/// Flags of every command that talks to a store.
#[derive(Args, Debug)]
pub(crate) struct Common {
    #[arg(long, value_name = "URL", help = STORE_HELP)]
    pub(crate) store: Option<OsString>,
    /// Say nothing but errors
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say who holds the name, and what is taken and released
    #[arg(short, long)]
    pub(crate) verbose: bool,
}
