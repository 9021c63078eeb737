//! `tenure help`: the help of a command, or a page about more than one.

use tenure::store::Parameter;

use crate::docs::command;
use crate::exit::Failure;
use crate::output::print;

/// The pages that are about no single command.
pub(crate) const TOPICS: [(&str, &str); 4] = [
    ("store", include_str!("help/store.txt")),
    ("config", include_str!("help/config.txt")),
    ("codes", include_str!("help/codes.txt")),
    ("words", include_str!("help/words.txt")),
];

/// Prints a page, or the help of a command.
pub(crate) fn main(words: &[String]) -> Result<u8, Failure> {
    if let [word] = words
        && let Some((_, text)) = TOPICS.iter().find(|(topic, _)| topic == word)
    {
        print(&filled(text))?;
        return Ok(0);
    }
    let topics = TOPICS.map(|(topic, _)| topic).join(", ");
    let mut command = command(words).map_err(|failure| failure.and(&format!("the other pages are {topics}")))?;
    print(&command.render_help().to_string())?;
    Ok(0)
}

/// The page with the parameters of a store in place of each line with an `@` and its scheme.
pub(crate) fn filled(page: &str) -> String {
    page.lines().map(|line| line.strip_prefix('@').map_or_else(|| format!("{line}\n"), parameters)).collect()
}

fn parameters(scheme: &str) -> String {
    let table = tenure_stores::PARAMETERS.iter().find(|(known, _)| *known == scheme);
    table.map_or("  This program was built without it.\n".to_owned(), |(_, table)| table.iter().map(row).collect())
}

fn row(Parameter { name, value, meaning, default }: &Parameter) -> String {
    let default = if ["", "none"].contains(default) { String::new() } else { format!(" (default: {default})") };
    let (mut row, mut line) = (String::new(), format!("  {:18}", format!("{name}={value}")));
    if line.len() > 20 {
        row = line + "\n";
        line = " ".repeat(20);
    }
    for word in format!("{meaning}{default}").replace('`', "").split_whitespace() {
        if line.len() + 1 + word.len() > 80 {
            row += &(line + "\n");
            line = " ".repeat(20);
        }
        line = line + " " + word;
    }
    row + &line + "\n"
}
