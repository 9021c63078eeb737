//! Mutants of a script: each breaks one statement, condition, operator, number or command at a
//! time.

use std::path::{Path, PathBuf};
use std::{fmt, fs};

/// A script with one thing wrong in it.
pub(crate) struct Mutant {
    pub(crate) path: PathBuf,
    pub(crate) original: String,
    pub(crate) mutated: String,
    line: usize,
    what: String,
    code: String,
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.path.file_name().unwrap_or_default().to_string_lossy();
        write!(f, "{file}:{}: {}: {}", self.line, self.what, self.code)
    }
}

/// Replacements outside of strings. An operator that is the beginning of a longer one comes after
/// it.
const OPERATORS: &[(&str, &[&str])] = &[
    ("==", &["~="]),
    ("~=", &["=="]),
    (">=", &[">", "<"]),
    ("<=", &["<", ">"]),
    (" > ", &[" >= ", " < "]),
    (" < ", &[" <= ", " > "]),
    (" + ", &[" - "]),
    (" - ", &[" + "]),
    (" * ", &[" + "]),
    (" and ", &[" or "]),
    (" or ", &[" and "]),
    ("not ", &[""]),
    ("math.max", &["math.min"]),
    ("math.floor", &["math.ceil"]),
];

/// Replacements of whole strings.
const STRINGS: &[(&str, &[&str])] = &[
    ("PEXPIRE", &["EXPIRE", "PERSIST"]),
    ("DEL", &["EXISTS"]),
    ("PTTL", &["TTL"]),
    ("GET", &["EXISTS", "GETDEL"]),
    ("PX", &["EX"]),
    ("0", &["1", ""]),
    ("1", &["0"]),
    ("", &["x"]),
    ("linger:", &["lingered:"]),
    ("%.0f", &["%.14g", "%.1f"]),
];

/// Every mutant of the script at `path`.
pub(crate) fn of_script(path: &Path) -> Vec<Mutant> {
    let original = fs::read_to_string(path).expect("the script can be read");
    let lines: Vec<&str> = original.lines().collect();
    let mut mutants = Vec::new();
    for (at, code) in lines.iter().enumerate().filter(|(_, line)| !line.trim_start().starts_with("--")) {
        for (what, changed) in of_line(code) {
            let mut all = lines.clone();
            all[at] = &changed;
            let mutated = all.join("\n") + "\n";
            let (path, original, code) = (path.to_owned(), original.clone(), code.trim().to_owned());
            mutants.push(Mutant { path, original, mutated, line: at + 1, what, code });
        }
    }
    mutants
}

/// The changes to one line of code: what was done, and the line as it then is.
fn of_line(code: &str) -> Vec<(String, String)> {
    let mut changes = statement(code);
    for (from, to) in spots(code) {
        let old = &code[from..to];
        let in_string = code[..from].matches('\'').count() % 2 == 1;
        let others: Vec<String> = if in_string {
            replacements(STRINGS, old)
        } else if let Ok(number) = old.parse::<i64>() {
            vec![(number + 1).to_string(), (number - 1).to_string()]
        } else {
            replacements(OPERATORS, old)
        };
        for new in others {
            let what = format!("{:?} instead of {:?} at {from}", new.trim(), old.trim());
            changes.push((what, [&code[..from], &new, &code[to..]].concat()));
        }
    }
    changes
}

fn replacements(table: &[(&str, &[&str])], old: &str) -> Vec<String> {
    let found = table.iter().find(|(from, _)| *from == old);
    found.map_or_else(Vec::new, |(_, others)| others.iter().map(|&other| other.to_owned()).collect())
}

/// A statement that is left out, a condition that is turned round or decided.
fn statement(code: &str) -> Vec<(String, String)> {
    let line = code.trim();
    if let Some(condition) = line.strip_prefix("if ").and_then(|rest| rest.strip_suffix(" then")) {
        let decided = [format!("not ({condition})"), "true".to_owned(), "false".to_owned()];
        return decided.into_iter().map(|other| (format!("if {other}"), format!("if {other} then"))).collect();
    }
    let is_assignment = line.contains(" = ") && !line.starts_with("local function") && !line.starts_with("for ");
    if line.starts_with("return") || line.starts_with("redis.call") || is_assignment {
        return vec![("left out".to_owned(), String::new())];
    }
    Vec::new()
}

/// Where the things stand that have others: strings as a whole, numbers, operators.
fn spots(code: &str) -> Vec<(usize, usize)> {
    let (mut spots, mut at) = (Vec::new(), 0);
    while at < code.len() {
        let rest = &code[at..];
        if let Some(string) = rest.strip_prefix('\'') {
            let end = string.find('\'').expect("a string ends on its line");
            spots.push((at + 1, at + 1 + end));
            at += end + 2;
        } else if let Some((operator, _)) = OPERATORS.iter().find(|(operator, _)| rest.starts_with(operator)) {
            spots.push((at, at + operator.len()));
            at += operator.trim_end().len();
        } else if rest.starts_with(|c: char| c.is_ascii_digit()) {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            spots.push((at, at + digits));
            at += digits;
        } else {
            at += 1;
        }
    }
    spots
}
