//! Connections with a password and with TLS.

use tenure::store::Credentials;
use tenure::{ErrorKind, Locker};
use tenure_sql::postgres::Options;
use tenure_testkit::{Certificates, Passwords, PostgresServer, rotation};

use crate::requests::{granted, joining, owner, request};

#[tokio::test]
async fn tls_is_used_and_checked_as_the_url_says() {
    let dir = tempfile::tempdir().unwrap();
    let certificates = Certificates::generate(dir.path());
    let server = PostgresServer::builder().password("s3cret").tls(&certificates).start();
    let (ca, port) = (certificates.ca().display().to_string(), server.addr().port());
    let url = |host: &str, parameters: &str| {
        format!("postgres://tenure:s3cret@{host}:{port}/postgres?create=yes&application_name=tls{parameters}")
    };
    let encrypted = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'tls'";
    for (host, parameters) in [
        ("localhost", String::new()),
        ("127.0.0.1", "&sslmode=require".to_owned()),
        ("localhost", format!("&sslmode=require&ca={ca}")),
        ("127.0.0.1", format!("&sslmode=verify-full&ca={ca}")),
    ] {
        let store = Options::parse(&url(host, &parameters)).unwrap().open().await.unwrap();
        assert_eq!(server.sql(encrypted), ["t"], "{parameters}");
        assert!(store.features().push, "a session is known for one through TLS");
        granted(&store, &request(&format!("{host}{parameters}"), &owner())).await;
        drop(store.watch(&joining("x")).await.unwrap());
    }
    let stranger = tempfile::tempdir().unwrap();
    let other = Certificates::generate(stranger.path()).ca().display().to_string();
    for parameters in ["&sslmode=verify-full".to_owned(), format!("&ca={other}")] {
        let error = Options::parse(&url("localhost", &parameters)).unwrap().open().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Unreachable && error.to_string().contains("TLS"), "{error:?}");
    }
    for (parameters, why) in [(format!("&cert={ca}"), "only one of"), ("&ca=/nowhere.pem".to_owned(), "/nowhere.pem")] {
        let error = Options::parse(&url("localhost", &parameters)).unwrap().open().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(why), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_is_lost_while_the_password_changes() {
    let server = PostgresServer::builder().password("s3cret").start();
    server.make_app("first");
    let url = server.url("locks").replace("tenure@", "app@") + "&timeout=5s";
    let open = async |credentials: Credentials| {
        Locker::new(Options::parse(&url).unwrap().credentials(credentials).open().await.unwrap())
    };
    rotation("first", open, |password| server.change_password(password)).await;
}
