//! docs/fenced-writes.md on Redis.

use tenure_redis::fenced;
use tenure_testkit::page::blocks;

use crate::subject::Lent;

#[test]
fn the_page_has_the_script() {
    let [script] = &blocks("fenced-writes.md", "Redis", "lua")[..] else { panic!("one script") };
    assert!(fenced::SET.ends_with(&format!("\n\n{script}")), "{script}");
}

/// Fences have more digits than a number of Lua keeps apart.
#[test]
fn a_write_without_the_largest_fence_is_refused() {
    let server = Lent::alone();
    let [script] = &blocks("fenced-writes.md", "Redis", "lua")[..] else { panic!("one script") };
    let write = |fence: &str, value: &str| server.command(&["EVAL", script, "2", "{stock/7}", "{stock/7}:fence", fence, value]);
    for (fence, value, written) in [
        ("9", "a", 1),
        ("9", "b", 1),
        ("10", "c", 1),
        ("9", "d", 0),
        ("9223372036854774783", "e", 1),
        ("9223372036854774784", "f", 1),
        ("9223372036854774783", "g", 0),
        ("10", "h", 0),
    ] {
        assert_eq!(write(fence, value), written, "{fence} {value}");
    }
    assert_eq!(server.command(&["GET", "{stock/7}"]), "f");
    assert_eq!(server.command(&["GET", "{stock/7}:fence"]), "9223372036854774784");
}
