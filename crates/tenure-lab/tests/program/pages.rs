//! The pages of the project name rows that the lab has.

use std::path::Path;

const PAGES: [&str; 6] = ["README.md", "CHANGELOG.md", "DESIGN.md", "GUARANTEES.md", "docs/choosing.md", "docs/lab.md"];

/// The lab has every row that a page tells to run.
#[test]
fn the_lab_has_what_the_pages_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let items = tenure_lab::items();
    let is_there =
        |page: &str, id: &str| assert!(items.iter().any(|item| item.id.starts_with(id)), "{page}: the lab has no {id}");
    let mut found = 0;
    for page in PAGES {
        let text = std::fs::read_to_string(root.join(page)).unwrap();
        for (at, told) in text.match_indices("tenure lab run ") {
            let line = text[at + told.len()..].split(['`', '#', '\n']).next().unwrap();
            for id in line.split_whitespace().filter(|word| word.contains('/') && !word.starts_with("docs/")) {
                is_there(page, id);
                found += 1;
            }
        }
    }
    let page = "docs/choosing.md";
    let words = std::fs::read_to_string(root.join(page)).unwrap();
    let ids = words.split('`').skip(1).step_by(2).filter(|word| word.contains('/') && !word.contains([' ', ':', '.']));
    for id in ids {
        is_there(page, id);
        found += 1;
    }
    assert!(found > 3, "{found}");
}
