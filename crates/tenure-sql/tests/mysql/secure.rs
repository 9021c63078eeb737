//! Connections with TLS.

use tenure::store::Credentials;
use tenure::{ErrorKind, Locker};
use tenure_sql::mysql::Options;
use tenure_testkit::{Certificates, Passwords, rotation};

use crate::Server;
use crate::requests::{granted, owner, request};

#[tokio::test]
async fn tls_is_used_and_checked_as_the_url_says() {
    let dir = tempfile::tempdir().unwrap();
    let certificates = Certificates::generate(dir.path());
    let server = Server::builder().tls(&certificates).start();
    // Without TLS it is not let in.
    server.sql("CREATE USER app IDENTIFIED BY 's3cret' REQUIRE SSL; GRANT ALL ON locks.* TO app");
    let (ca, port) = (certificates.ca().display().to_string(), server.addr().port());
    let url = |host: &str, parameters: &str| format!("mysql://app:s3cret@{host}:{port}/locks?create=yes{parameters}");
    for (host, parameters) in [
        ("127.0.0.1", "&sslmode=require".to_owned()),
        ("localhost", format!("&sslmode=require&ca={ca}")),
        ("localhost", format!("&ca={ca}")),
        ("127.0.0.1", format!("&sslmode=verify-full&ca={ca}")),
    ] {
        let store = Options::parse(&url(host, &parameters)).unwrap().open().await.unwrap();
        granted(&store, &request(&format!("{host}{parameters}"), &owner())).await;
    }
    let error = Options::parse(&url("localhost", "")).unwrap().open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "without TLS: {error:?}");
    let stranger = tempfile::tempdir().unwrap();
    let other = Certificates::generate(stranger.path()).ca().display().to_string();
    for parameters in ["&sslmode=verify-full".to_owned(), format!("&ca={other}")] {
        let error = Options::parse(&url("localhost", &parameters)).unwrap().open().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Unreachable && error.to_string().contains("TLS"), "{error:?}");
    }
    for (parameters, why) in
        [(format!("&sslmode=require&cert={ca}"), "only one of"), ("&ca=/nowhere.pem".to_owned(), "/nowhere.pem")]
    {
        let error = Options::parse(&url("localhost", &parameters)).unwrap().open().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(why), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_is_lost_while_the_password_changes() {
    let server = Server::start();
    server.make_app("first");
    let url = server.url("locks").replace("root@", "app@") + "&timeout=5s";
    let open = async |credentials: Credentials| {
        Locker::new(Options::parse(&url).unwrap().credentials(credentials).open().await.unwrap())
    };
    rotation("first", open, |password| server.change_password(password)).await;
}
