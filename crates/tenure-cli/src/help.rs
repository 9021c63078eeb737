//! `tenure help`: the help of a command, or a page about more than one.

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
        print(text)?;
        return Ok(0);
    }
    let topics = TOPICS.map(|(topic, _)| topic).join(", ");
    let mut command = command(words).map_err(|failure| failure.and(&format!("the other pages are {topics}")))?;
    print(&command.render_help().to_string())?;
    Ok(0)
}
