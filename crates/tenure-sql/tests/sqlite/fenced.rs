//! docs/fenced-writes.md on SQLite: each statement as it stands on the page.

use rusqlite::{Connection, params};
use tenure_sql::fenced;
use tenure_testkit::page::blocks;

fn page(heading: &str) -> Vec<String> {
    blocks("fenced-writes.md", heading, "sql")
}

/// A row of id 7 with 10 units.
fn stock() -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    connection.execute_batch(&page("A column in the guarded row")[0]).unwrap();
    connection.execute("INSERT INTO stock (id, units) VALUES (7, 10)", []).unwrap();
    connection
}

fn row(connection: &Connection) -> (i64, i64) {
    connection.query_row("SELECT units, fence FROM stock WHERE id = 7", [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
}

#[test]
fn a_write_without_the_largest_fence_changes_no_row() {
    let connection = stock();
    let write = &page("A column in the guarded row")[2];
    let write = |units: i64, fence: i64| connection.execute(write, params![units, fence, 7, fence]).unwrap();
    assert_eq!((write(9, 3), write(8, 3)), (1, 1), "one holder writes often");
    assert_eq!((write(7, 5), write(6, 3), row(&connection)), (1, 0, (7, 5)));
    assert_eq!((write(7, 5), row(&connection)), (1, (7, 5)), "the same once more");
}

#[test]
fn a_holder_that_has_read_is_followed_by_no_earlier_one() {
    let connection = stock();
    let [read, write, ..] = &page("Read, then write")[..] else { panic!("two statements") };
    let read = |fence: i64| {
        let read = read.replace('$', "?");
        connection.query_row(&read, params![7, fence], |row| row.get::<_, i64>(0)).ok()
    };
    let write = |units: i64, fence: i64| connection.execute(&write.replace('$', "?"), params![7, fence, units]).unwrap();
    assert_eq!((read(3), read(5)), (Some(10), Some(10)));
    assert_eq!((write(9, 3), write(8, 5), row(&connection)), (0, 1, (8, 5)));
    assert_eq!(read(3), None);
}

#[test]
fn a_table_of_fences_refuses_a_stale_holder() {
    let connection = Connection::open_in_memory().unwrap();
    let [create, raise, ..] = &page("A table of fences")[..] else { panic!("two statements") };
    assert_eq!((create.trim_end(), raise.trim_end()), (fenced::postgres::CREATE, fenced::postgres::RAISE));
    connection.execute_batch(create).unwrap();
    let raise = |resource: &str, fence: i64| connection.execute(raise, params![resource, fence]).unwrap();
    assert_eq!((raise("stock/7", 3), raise("stock/7", 3), raise("stock/7", 5), raise("stock/7", 3)), (1, 1, 1, 0));
    assert_eq!((raise("stock/8", 1), raise("stock/7", i64::MAX)), (1, 1));
}

#[test]
fn numbers_have_no_gap_and_a_stale_holder_gets_none() {
    let connection = Connection::open_in_memory().unwrap();
    let [create, next, ..] = &blocks("numbers.md", "Without gaps", "sql")[..] else { panic!("two statements") };
    assert_eq!((create.trim_end(), next.trim_end()), (fenced::postgres::NUMBERS, fenced::postgres::NEXT));
    connection.execute_batch(create).unwrap();
    let next = |name: &str, fence: i64| connection.query_row(next, params![name, fence], |row| row.get::<_, i64>(0)).ok();
    assert_eq!([next("a", 3), next("a", 3), next("a", 5)], [Some(1), Some(2), Some(3)]);
    assert_eq!([next("a", 3), next("a", 5), next("b", 0), next("b", 0)], [None, Some(4), Some(1), Some(2)]);
}
