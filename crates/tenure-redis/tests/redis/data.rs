//! The Redis store beside large data of applications: to show a name reads a little of it.

use tenure::store::Store as _;
use tenure::{ErrorKind, Name, Owner, Share};

use crate::subject::Lent;
use crate::{LONG, patient, served, store};

/// An answer counts as memory of the server, which evicts locks for it.
#[tokio::test]
async fn data_of_others_is_not_read_whole() {
    let server = Lent::alone();
    server.command(&["SET", "text", &"x".repeat(1 << 20)]);
    let members = (0..50_000).flat_map(|at| ["1".to_owned(), format!("member-{at}")]);
    server.command(&["ZADD".to_owned(), "set".to_owned()].into_iter().chain(members).collect::<Vec<_>>());
    let sent = || {
        let stats = server.cli("INFO stats");
        let line = stats.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:")).expect("it counts its answers");
        line.trim().parse::<u64>().unwrap()
    };
    let store = store(&patient(&server.url())).await;
    for name in [Some("text"), Some("set"), None] {
        let (name, before) = (name.map(|name| Name::new(name).unwrap()), sent());
        match store.inspect(name.as_ref()).await {
            Ok(entries) => assert!(name.is_none() && entries.is_empty(), "{name:?} is shown"),
            Err(error) => assert!(name.is_some() && error.kind() == ErrorKind::Mismatch, "{name:?}: {error:?}"),
        }
        let read = sent() - before;
        assert!(read < 100_000, "{name:?}: {read} bytes");
    }
}

/// A few more than are read at first.
#[tokio::test]
async fn all_holders_of_a_name_are_shown() {
    const MANY: usize = 300;
    let (_server, store) = served().await;
    let name = Name::new("x").unwrap();
    let readers = (0..MANY).map(|_| Owner::generate("reader").unwrap());
    let readers = readers.map(|owner| tenure::store::Request::new(name.clone(), owner, Share::READ, LONG));
    for reader in readers {
        store.acquire(&reader).await.unwrap();
    }
    for asked in [Some(&name), None] {
        let shown = store.inspect(asked).await.unwrap();
        assert!(shown.len() == 1 && shown[0].holders.len() == MANY, "{asked:?}: {} are shown", shown[0].holders.len());
    }
}
