//! Blocks and tables of the pages in `docs`, for tests that run them as they stand there, or compare them with the code.

use std::fs;
use std::path::Path;

/// The blocks in `language` under a heading of a page, without their indentation.
#[track_caller]
pub fn blocks(page: &str, heading: &str, language: &str) -> Vec<String> {
    let section = section(page, heading);
    let fence = format!("```{language}\n");
    let mut blocks = Vec::new();
    for (before, after) in section.match_indices(&fence).map(|(at, _)| (&section[..at], &section[at + fence.len()..])) {
        let indent = before.rsplit('\n').next().unwrap_or_default();
        let end = after.find(&format!("{indent}```")).unwrap_or_else(|| panic!("a block under {heading:?} does not end"));
        let lines: Vec<&str> = after[..end].lines().map(|line| line.strip_prefix(indent).unwrap_or(line)).collect();
        blocks.push(lines.join("\n") + "\n");
    }
    assert!(!blocks.is_empty(), "no {language} under {heading:?}");
    blocks
}

#[track_caller]
fn section(page: &str, heading: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = fs::read_to_string(path).unwrap();
    let section = text.split("\n## ").find(|section| section.starts_with(heading));
    section.unwrap_or_else(|| panic!("no {heading:?}")).to_owned()
}

/// The cells of the first table under a heading of a page, without its head.
#[track_caller]
pub fn rows(page: &str, heading: &str) -> Vec<Vec<String>> {
    let section = section(page, heading);
    let table = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|')).skip(2);
    let rows: Vec<_> = table.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect();
    assert!(!rows.is_empty(), "no table under {heading:?}");
    rows
}

/// Pieces of code in a cell.
pub fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Answers of a store on the page of errors, each with what is [`told`] of it.
#[track_caller]
pub fn errors(store: &str) -> Vec<(String, [String; 2])> {
    let row = |row: Vec<String>| {
        let [answers, _, kind, applied, _] = <[String; 5]>::try_from(row).unwrap();
        let told = [kind.replace('`', ""), applied];
        quoted(&answers).map(|answer| (answer.to_owned(), told.clone())).collect::<Vec<_>>()
    };
    rows("errors.md", store).into_iter().flat_map(row).collect()
}

/// Kind of an error, and whether it may have been applied, in the words of that page.
pub fn told(error: &tenure::Error) -> [String; 2] {
    [format!("{:?}", error.kind()), if error.may_have_been_applied() { "maybe" } else { "no" }.to_owned()]
}
