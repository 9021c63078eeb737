//! A gateway that serves one request per user at a time, and what that costs.
//!
//! `service.rs` is the service with the layer. `load.rs` sends requests at a constant rate to it, and
//! to the same service without the layer. `clicks.rs` sends every request twice.

#![allow(clippy::print_stdout, reason = "the program reports on standard output")]

mod clicks;
mod client;
mod load;
mod measured;
mod process;
mod service;

use clap::{Parser, Subcommand};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Serves requests under a lock for each user, and measures what it costs.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves POST /gift and POST /ping; the header x-user-id is the key
    Serve(service::Args),
    /// Sends requests at a constant rate, with the layer and without it, and prints a table
    Load(load::Args),
    /// Sends every request twice, with the layer and without it, and counts the gifts
    Clicks(clicks::Args),
}

fn main() -> Result<(), Error> {
    match Args::parse().command {
        Command::Serve(args) => service::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Clicks(args) => clicks::run(&args),
    }
}
