//! Flags of the commands about a store itself.

use clap::Args;

use super::common::Common;
use super::help::MIGRATION_HELP;

#[derive(Args, Debug)]
pub(crate) struct Admit {
    /// Also where a server knows of a lease that has not ended. If its holder lives, two may hold
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) common: Common,
}

#[derive(Args, Debug)]
#[command(after_help = MIGRATION_HELP)]
pub(crate) struct Migration {
    #[command(flatten)]
    pub(crate) common: Common,
}
