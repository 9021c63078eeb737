//! The pages of the project lead where they say.

use std::collections::BTreeSet;
use std::path::Path;

const PAGES: [&str; 11] = [
    "README.md",
    "CHANGELOG.md",
    "COMPARE.md",
    "CONTRIBUTING.md",
    "DESIGN.md",
    "GUARANTEES.md",
    "docs/calls.md",
    "docs/choosing.md",
    "docs/errors.md",
    "docs/lab.md",
    "docs/recipes.md",
];

fn read(page: &Path) -> String {
    std::fs::read_to_string(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

/// Where the links of a page lead, but for those to other places of the web.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let ends = text.match_indices("](").map(|(at, _)| text[at + 2..].split(')').next().unwrap());
    ends.filter(|link| !link.contains("://") && !link.contains(char::is_whitespace))
}

/// Names of the headings of a page in a link.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let kept = |c: char| c.is_alphanumeric() || "-_ ".contains(c);
    headings.map(|heading| heading.to_lowercase().chars().filter(|c| kept(*c)).collect::<String>().replace(' ', "-")).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut checked = 0;
    for page in PAGES {
        let from = root.join(page);
        let text = read(&from);
        for link in links(&text) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let to = if file.is_empty() { from.clone() } else { from.parent().unwrap().join(file) };
            assert!(to.exists(), "{page}: {link} is not there");
            assert!(anchor.is_empty() || anchors(&read(&to)).contains(anchor), "{page}: {link} is no heading");
            checked += 1;
        }
    }
    assert!(checked > 50, "{checked}");
}

/// A reader can copy any URL from a page: its scheme is known.
#[test]
fn every_dialect_of_the_pages_is_spoken() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut spoken = BTreeSet::new();
    for page in PAGES {
        let text = read(&root.join(page));
        let words = text.match_indices("scheme=").map(|(at, found)| &text[at + found.len()..]);
        let words = words.map(|rest| rest.split(|c: char| !c.is_ascii_lowercase() && c != '-').next().unwrap());
        for scheme in words.filter(|scheme| !scheme.is_empty()) {
            // Schemes of databases and of memcached: their tests have them.
            if ["advisory", "add", "cas"].contains(&scheme) {
                continue;
            }
            let url = format!("redis://cache?scheme={scheme}");
            assert!(tenure_redis::Options::parse(&url).is_ok(), "{page}: {url}");
            spoken.insert(scheme.to_owned());
        }
    }
    assert!(spoken.len() > 2, "{spoken:?}");
}

/// The page has every `profile=` that there is, and no other.
#[test]
fn every_profile_is_on_the_page() {
    let page = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/choosing.md"));
    let table = page.split("\n| `profile=` | key of").nth(1).unwrap().split("\n\n").next().unwrap();
    let cells = table.lines().skip(2).map(|line| line.split('|').nth(1).unwrap());
    let told: BTreeSet<_> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let parse =
        |profile: &str| tenure_redis::Options::parse(&format!("redis://cache?scheme=set-nx&prefix=app&profile={profile}"));
    for profile in &told {
        assert!(parse(profile).is_ok(), "{profile}");
    }
    let error = parse("nobody").unwrap_err().to_string();
    let known = error.rsplit("one of ").next().unwrap().split(", ").collect();
    assert_eq!(told, known);
}

fn sources(folder: &Path, all: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            sources(&entry, all);
        } else if entry.extension().is_some_and(|end| end == "rs") {
            all.push_str(&read(&entry));
        }
    }
}

/// A reader can run what shows an answer.
#[test]
fn every_test_of_the_page_of_errors_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut tests = String::new();
    sources(&root.join("crates"), &mut tests);
    let page = read(&root.join("docs/errors.md"));
    let mut named = 0;
    for table in page.split("\n\n").filter(|table| table.lines().next().is_some_and(|head| head.ends_with("| shown by |"))) {
        for shown in table.lines().skip(2).map(|row| row.trim_end_matches(" |").rsplit("| ").next().unwrap()) {
            let test = shown.trim_matches('`');
            assert!(["-", "raised"].contains(&test) || tests.contains(&format!("fn {test}(")), "there is no {test}");
            named += usize::from(test != shown);
        }
    }
    assert!(named > 40, "{named}");
}
