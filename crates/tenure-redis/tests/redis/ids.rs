//! Ids by the fences of each scheme.

use std::collections::HashSet;

use tenure::ErrorKind;
use tokio::task::JoinSet;

use crate::subject::Lent;

/// A block of the native layout and of `watch` has 1,024 ids. Redisson's clients count with the
/// numbers between two grants, so a grant there has one.
#[tokio::test]
async fn no_scheme_gives_an_id_twice() {
    let server = Lent::alone();
    for (scheme, block, most) in
        [("native", 1_024, 2_500), ("watch", 1_024, 2_500), ("redisson", 1, 100), ("redisson-fair", 1, 100)]
    {
        let url = format!("{}?scheme={scheme}", server.url());
        let mut sources = JoinSet::new();
        for _ in 0..2 {
            let locks = tenure_redis::connect(&url).await.unwrap();
            for _ in 0..2 {
                let ids = locks.ids("orders");
                sources.spawn(async move {
                    let mut given = Vec::new();
                    for _ in 0..most {
                        given.push(ids.next().await.unwrap());
                    }
                    given
                });
            }
        }
        let given = sources.join_all().await;
        for given in &given {
            assert!(given.is_sorted_by(|a, b| a < b), "{scheme}: the ids of a source do not rise");
            let in_blocks = given.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
            assert_eq!(in_blocks > given.len() / 2, block > 1, "{scheme}: {in_blocks} of {}", given.len());
        }
        let all: HashSet<i64> = given.iter().flatten().copied().collect();
        assert_eq!(all.len(), 4 * most, "{scheme}: an id was given twice");
    }
}

#[tokio::test]
async fn schemes_without_fences_are_refused() {
    let server = Lent::alone();
    for scheme in ["set-nx", "setnx-expire", "setnx-expire-lua", "php", "getset"] {
        let locks = tenure_redis::connect(&format!("{}?scheme={scheme}", server.url())).await.unwrap();
        let error = locks.ids("orders").next().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{scheme}: {error}");
    }
}

/// One that counts with an `RFencedLock` beside ours.
#[tokio::test]
async fn a_client_of_redisson_gets_no_id_of_ours() {
    let server = Lent::alone();
    let locks = tenure_redis::connect(&format!("{}?scheme=redisson", server.url())).await.unwrap();
    let (ids, mut all) = (locks.ids("orders"), HashSet::new());
    for _ in 0..20 {
        // As `getAndIncrement` of the other side: the token is one further.
        let theirs = server.command(&["INCR", "redisson_lock_token:{orders}"]).int();
        assert!(all.insert(theirs), "{theirs} was given twice");
        let ours = ids.next().await.unwrap();
        assert!(all.insert(ours), "{ours} was given twice");
    }
}
