//! The recipes of Curator and ours on one path: they exclude each other, in one queue.

use tenure_testkit::ZooKeeperServer as Server;

use crate::common::Place;
use crate::sides::{Library, all_take_turns, java, library};

const MUTEX: Library = library("curator", "", java);
const READER: Library = Library { flags: &["--shared"], ..library("curator-read", "", java) };
const WRITER: Library = Library { flags: &["--write"], ..library("curator-write", "", java) };

/// Curator makes no chroot by itself.
fn with_chroot() -> (Place, String) {
    let (place, url) = (Place::new(), Server::shared().url(&Server::fresh_chroot()));
    assert_eq!(place.output(&["run", "--store", &url, "x", "--", "true"]).code, 0);
    (place, url)
}

#[test]
fn curator_and_tenure_take_turns() {
    let (_, url) = with_chroot();
    all_take_turns(&[MUTEX, WRITER], &url);
}

#[test]
fn a_holder_of_curator_keeps_ours_out_and_is_shown() {
    for (side, shared) in [(&MUTEX, "75"), (&WRITER, "75"), (&READER, "0")] {
        let (place, url) = with_chroot();
        let mut held = side.holds(&place, &url);
        assert_eq!(place.output(&side.ours(&url, &["-n"], &["true"])).code.to_string(), shared, "{}", side.name);
        let shown = place.output(&["show", "--store", &url, "x"]);
        assert!(shown.code == 0 && shown.out.contains("_c_"), "{shown:?}");
        drop(held.0.stdin.take());
        assert_eq!(held.end().code, 0);
        assert_eq!(place.output(&side.ours(&url, &["-n"], &["true"])).code, 0, "{}", side.name);
    }
}

#[test]
fn ours_keeps_curator_out() {
    for side in [&MUTEX, &WRITER, &READER] {
        let (place, url) = with_chroot();
        let java = (side.program)(&[side.name, &url, "x", "try"]);
        let mut words = vec![java.get_program().to_str().unwrap().to_owned()];
        words.extend(java.get_args().map(|word| word.to_str().unwrap().to_owned()));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let tried = place.output(&side.ours(&url, &[], &words));
        // Readers of both hold together.
        let expected = if side.name == "curator-read" { 0 } else { 75 };
        assert_eq!(tried.code, expected, "{}: {tried:?}", side.name);
    }
}
