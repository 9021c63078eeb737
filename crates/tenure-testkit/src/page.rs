//! Blocks of the pages in `docs`, for tests that run them as they stand there.

use std::fs;
use std::path::Path;

/// The blocks in `language` under a heading of a page, without their indentation.
#[track_caller]
pub fn blocks(page: &str, heading: &str, language: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = fs::read_to_string(path).unwrap();
    let section = text.split("\n## ").find(|section| section.starts_with(heading)).unwrap_or_else(|| panic!("no {heading:?}"));
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
