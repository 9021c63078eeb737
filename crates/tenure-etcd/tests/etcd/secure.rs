//! TLS, and logins.

use std::time::Duration;

use tempfile::TempDir;
use tenure::ErrorKind;
use tenure::store::{RenewReply, Store};
use tenure_etcd::Options;
use tenure_testkit::{Certificates, EtcdCluster};

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
        let error = match Options::parse(&url).unwrap().open().await {
            Ok(store) => store.acquire(&request("x", &owner())).await.unwrap_err(),
            Err(error) => error,
        };
        assert!(error.kind() == ErrorKind::Refused && !error.may_have_been_applied(), "{url}: {error:?}");
        assert!(!error.to_string().contains("wrong"), "{error}");
    }
}

/// A right is taken away while locks are held. The others of the batch go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_name_does_not_end_the_renewals_of_others() {
    let etcd = EtcdCluster::of(1).start();
    etcd.ctl(&["user", "add", "root:s3cret"]);
    etcd.ctl(&["user", "grant-role", "root", "root"]);
    etcd.ctl(&["user", "add", "app:pass"]);
    etcd.ctl(&["role", "add", "locks"]);
    for prefix in ["locks/x/", "locks/y/", "locks/z/", "locks/tenure"] {
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
