//! The lab and the benchmarks of tenure: `tenure lab` and `tenure bench` run this program.

mod command;

fn main() -> std::process::ExitCode {
    command::main(std::env::args_os()).into()
}
