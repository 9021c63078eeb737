//! Completions and manual pages.

use std::io::{Write, stdout};
use std::path::Path;

use clap::CommandFactory;

use crate::args::Cli;
use crate::exit::{DAMAGED, Failure};

/// Prints the completion script for `shell`.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tenure", &mut script);
    stdout().write_all(&script).map_err(|e| unwritten("the completion script", &e))?;
    Ok(0)
}

/// Prints the manual page, or writes one page per command into `dir`.
pub(crate) fn man(dir: Option<&Path>) -> Result<u8, Failure> {
    match dir {
        None => {
            let mut page = Vec::new();
            let rendered = clap_mangen::Man::new(Cli::command()).render(&mut page);
            rendered.and_then(|()| stdout().write_all(&page)).map_err(|e| unwritten("the manual page", &e))?;
        }
        Some(dir) => {
            let written = std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(Cli::command(), dir));
            written.map_err(|e| unwritten(&format!("manual pages in {}", dir.display()), &e))?;
        }
    }
    Ok(0)
}

fn unwritten(what: &str, error: &std::io::Error) -> Failure {
    Failure::new(DAMAGED, format!("{what} cannot be written, {error}; check the place they go to"))
}
