//! Completions and manual pages.

use clap::CommandFactory;

use crate::args::{Cli, Man};
use crate::exit::{DAMAGED, Failure};
use crate::output::print;

/// Prints the completion script for `shell`.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tenure", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(0)
}

/// Prints the manual page of a command, or writes all pages into a directory.
pub(crate) fn man(args: &Man) -> Result<u8, Failure> {
    if let Some(dir) = &args.dir {
        let written = std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(Cli::command(), dir));
        written.map_err(|e| unwritten(&format!("manual pages in {}", dir.display()), &e))?;
        return Ok(0);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command(&args.command)?).render(&mut page).map_err(|e| unwritten("the manual page", &e))?;
    print(&String::from_utf8_lossy(&page))?;
    Ok(0)
}

/// A command of ours, by the words that lead to it.
pub(crate) fn command(words: &[String]) -> Result<clap::Command, Failure> {
    let mut command = Cli::command();
    command.build();
    for word in words {
        let found = command.find_subcommand(word).cloned();
        command = found.ok_or_else(|| Failure::usage(format!("{word:?} is no command of tenure; see `tenure --help`")))?;
    }
    Ok(command)
}

fn unwritten(what: &str, error: &std::io::Error) -> Failure {
    Failure::new(DAMAGED, format!("{what} cannot be written, {error}; check the place they go to"))
}
