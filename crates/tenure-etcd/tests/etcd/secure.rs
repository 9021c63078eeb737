//! TLS, and logins.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tempfile::TempDir;
use tenure::store::{Credentials, RenewReply, Store};
use tenure::{ErrorKind, Locker};
use tenure_etcd::Options;
use tenure_testkit::{Certificates, EtcdCluster, Passwords, Proxy, free_port, rotation};

use crate::open;
use crate::requests::{granted, lease, owner, request};

#[tokio::test]
async fn tls_with_certificates_of_both_sides() {
    let dir = TempDir::new().unwrap();
    let certificates = Certificates::generate(dir.path());
    let etcd = EtcdCluster::of(1).tls(&certificates).start();
    let (ca, cert, key) = (certificates.ca(), certificates.client_cert(), certificates.client_key());
    let files = format!("ca={}&cert={}&key={}", ca.display(), cert.display(), key.display());
    let store = open(&format!("etcds://{}?{files}", etcd.addr(0))).await;
    granted(&store, &request("x", &owner())).await;
    // The key has no certificate of an authority.
    let useless = Options::parse(&format!("etcds://{}?ca={}", etcd.addr(0), key.display())).unwrap().open().await.unwrap_err();
    assert_eq!(useless.kind(), ErrorKind::Invalid, "{useless:?}");
    let plain = Options::parse(&format!("etcd://{}", etcd.addr(0))).unwrap().open().await.unwrap_err();
    assert!(!plain.may_have_been_applied(), "{plain:?}");
    let stranger = Options::parse(&format!("etcds://{}", etcd.addr(0))).unwrap().open().await.unwrap_err();
    assert_eq!(stranger.kind(), ErrorKind::Unreachable, "{stranger:?}");
}

/// A server forgets its tokens when it starts again; the next call logs in.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_is_made_again_when_its_token_is_forgotten() {
    let etcd = EtcdCluster::of(1).start();
    etcd.ctl(&["user", "add", "root:s3cret"]);
    etcd.ctl(&["user", "grant-role", "root", "root"]);
    etcd.ctl(&["user", "add", "app:pass"]);
    etcd.ctl(&["role", "add", "locks"]);
    etcd.ctl(&["role", "grant-permission", "locks", "readwrite", "--prefix", "locks/"]);
    etcd.ctl(&["user", "grant-role", "app", "locks"]);
    etcd.ctl(&["auth", "enable"]);
    let at = etcd.addr(0);
    let store = open(&format!("etcd://app:pass@{at}/locks?timeout=3s")).await;
    let held = owner();
    granted(&store, &request("x", &held)).await;
    etcd.restart(0);
    let renewed = async {
        while store.renew(&[lease("x", &held)]).await.remove(0).ok() != Some(RenewReply::Renewed) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(crate::PATIENCE, renewed).await.expect("it does not log in again");
    for url in [format!("etcd://app:wrong@{at}/locks"), format!("etcd://{at}/locks"), format!("etcd://app:pass@{at}/other")] {
        let url = url + "?timeout=10s";
        let error = match Options::parse(&url).unwrap().open().await {
            Ok(store) => store.acquire(&request("x", &owner())).await.unwrap_err(),
            Err(error) => error,
        };
        assert!(error.kind() == ErrorKind::Refused && !error.may_have_been_applied(), "{url}: {error:?}");
        assert!(!error.to_string().contains("wrong"), "{error}");
    }
    // The others will be back. One that was away knows the old password for a while.
    let [gone, lost] = [free_port(), free_port()];
    for members in [format!("{at},127.0.0.1:{gone},127.0.0.1:{lost}"), format!("127.0.0.1:{gone},{at},127.0.0.1:{lost}")] {
        let error = Options::parse(&format!("etcd://app:wrong@{members}")).unwrap().open().await.unwrap_err();
        let text = error.to_string();
        assert!(error.kind() == ErrorKind::Unreachable && text.contains("password") && text.contains("cannot connect"), "{text}");
    }
}

/// Calls whose token is gone make one login together, and keep it for the next connection.
#[tokio::test(flavor = "multi_thread")]
async fn many_calls_make_one_login() {
    const MANY: usize = 100;
    let etcd = EtcdCluster::of(1).start();
    for command in [
        &["user", "add", "root:s3cret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "app:pass"],
        &["role", "add", "locks"],
        &["role", "grant-permission", "locks", "readwrite", "--prefix", "locks/"],
        &["user", "grant-role", "app", "locks"],
        &["auth", "enable"],
    ] {
        etcd.ctl(command);
    }
    let proxy = Proxy::start_opaque(etcd.addr(0));
    let store = open(&format!("etcd://app:pass@{}/locks?timeout=10s", proxy.addr())).await;
    let looks = || {
        let look = |store: Arc<dyn Store>| async move { store.inspect(Some(&lease("x", &owner()).name)).await };
        join_all((0..MANY).map(|_| tokio::spawn(look(store.clone()))).collect::<Vec<_>>())
    };
    // All tokens end.
    etcd.ctl(&["--user=root:s3cret", "auth", "disable"]);
    etcd.ctl(&["auth", "enable"]);
    for look in looks().await {
        look.unwrap().unwrap();
    }
    assert_eq!(proxy.accepted(), 1, "a login that takes long ends no connection");
    proxy.cut();
    // Some may have been on their way.
    looks().await;
    for look in looks().await {
        look.unwrap().unwrap();
    }
    assert!(proxy.accepted() <= 3, "{} connections", proxy.accepted());
}

/// A right is taken away while locks are held. The others of the batch go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_name_does_not_end_the_renewals_of_others() {
    let etcd = EtcdCluster::of(1).start();
    etcd.ctl(&["user", "add", "root:s3cret"]);
    etcd.ctl(&["user", "grant-role", "root", "root"]);
    etcd.ctl(&["user", "add", "app:pass"]);
    etcd.ctl(&["role", "add", "locks"]);
    for prefix in ["locks/x/", "locks/y/", "locks/z/"] {
        etcd.ctl(&["role", "grant-permission", "locks", "readwrite", "--prefix", prefix]);
    }
    etcd.ctl(&["user", "grant-role", "app", "locks"]);
    etcd.ctl(&["auth", "enable"]);
    let store = open(&format!("etcd://app:pass@{}/locks?timeout=3s", etcd.addr(0))).await;
    let held = owner();
    for name in ["x", "y", "z"] {
        granted(&store, &request(name, &held)).await;
    }
    etcd.ctl(&["--user=root:s3cret", "role", "revoke-permission", "locks", "--prefix", "locks/y/"]);
    let all = ["x", "y", "z"].map(|name| lease(name, &held));
    let replies = store.renew(&all).await;
    assert_eq!(replies[1].as_ref().unwrap_err().kind(), ErrorKind::Refused, "{replies:?}");
    for at in [0, 2] {
        assert_eq!(*replies[at].as_ref().unwrap(), RenewReply::Renewed, "{replies:?}");
    }
}

/// etcd ends no connection, but forgets the tokens of the user.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_is_lost_while_the_password_changes() {
    let etcd = EtcdCluster::of(1).start();
    etcd.make_app("first");
    let url = format!("etcd://app@{}/locks?timeout=5s", etcd.addr(0));
    let open = async |credentials: Credentials| {
        Locker::new(Arc::new(Options::parse(&url).unwrap().credentials(credentials).open().await.unwrap()))
    };
    rotation("first", open, |password| etcd.change_password(password)).await;
}
