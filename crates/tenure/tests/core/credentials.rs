//! Credentials: how often they are asked for, and when a refusal is one for good.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use tenure::store::{Credentials, Login};
use tenure::{Error, ErrorKind};
use tokio::sync::Notify;
use tokio::time::{advance, timeout};

/// Credentials with the passwords 1, 2, 3 and so on, but for those that come more than once.
fn passwords(each: usize) -> (Credentials, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let ask = move || {
        let number = count.fetch_add(1, Ordering::SeqCst) / each;
        async move { Ok::<_, Error>(Login::of_password(number.to_string())) }
    };
    (Credentials::asking("the token service", ask), asked)
}

async fn takes(credentials: &Credentials, password: &str) -> Result<(), Error> {
    let attempt = |login: Login| async move {
        if login.password.as_deref() == Some(password) { Ok(()) } else { Err(Error::refused("WRONGPASS")) }
    };
    credentials.log_in(attempt).await
}

/// Also if the first of those who wait has gone away.
#[tokio::test]
async fn one_question_is_asked_for_all_who_wait() {
    let (asked, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (count, gate) = (Arc::clone(&asked), Arc::clone(&go));
    let credentials = Credentials::asking("the token service", move || {
        count.fetch_add(1, Ordering::SeqCst);
        let gate = Arc::clone(&gate);
        async move {
            gate.notified().await;
            Ok::<_, Error>(Login::of_password("x"))
        }
    });
    let (first, second) = (credentials.clone(), credentials.or(&Login::of_user("me").into()));
    assert!(first.login().now_or_never().is_none());
    let late = first.unanswered().unwrap().to_string();
    assert!(late.contains("the token service gave no login in time"), "{late}");
    let waiting = tokio::spawn(async move { second.login().await });
    tokio::task::yield_now().await;
    go.notify_one();
    assert_eq!(waiting.await.unwrap().unwrap(), Login::new("me", "x"));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert!(credentials.unanswered().is_none());
}

/// A function that never answers does not keep the store out for ever.
#[tokio::test(start_paused = true)]
async fn a_question_without_an_answer_is_asked_anew() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let credentials = Credentials::asking("the token service", move || {
        let is_first = count.fetch_add(1, Ordering::SeqCst) == 0;
        async move { if is_first { std::future::pending().await } else { Ok::<_, Error>(Login::of_password("x")) } }
    });
    assert!(timeout(Duration::from_secs(29), credentials.login()).await.is_err());
    assert!(timeout(Duration::from_millis(900), credentials.login()).await.is_err());
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    advance(Duration::from_secs(1)).await;
    assert_eq!(credentials.login().await.unwrap(), Login::of_password("x"));
}

#[tokio::test]
async fn a_failed_question_is_told_with_its_name() {
    let failing = || async { Err::<Login, _>(std::io::Error::other("the vault is sealed")) };
    let error = Credentials::asking("the token service", failing).login().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("the token service gave no login: it failed: the vault is sealed"), "{error}");
    let refusing = || async { Err::<Login, _>(Error::refused("this role is gone")) };
    assert_eq!(Credentials::asking("it", refusing).login().await.unwrap_err().kind(), ErrorKind::Refused);
    let panicking = || async { panic!("a mistake in the application") as Result<Login, Error> };
    assert_eq!(Credentials::asking("it", panicking).login().await.unwrap_err().kind(), ErrorKind::Unreachable);
}

#[tokio::test]
async fn a_file_is_read_for_each_login_and_its_user_is_that_of_the_url() {
    let path = std::env::temp_dir().join(format!("tenure-password-{}", std::process::id()));
    let credentials = Credentials::password_file(&path).or(&Login::new("app", "old").into());
    let error = credentials.login().await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains(&path.display().to_string()), "{error}");
    for (text, password) in [("one\n", "one"), ("two\r\n", "two")] {
        std::fs::write(&path, text).unwrap();
        assert_eq!(credentials.login().await.unwrap(), Login::new("app", password));
    }
    std::fs::write(&path, "\n").unwrap();
    assert!(credentials.login().await.unwrap_err().to_string().contains("is empty"));
    std::fs::remove_file(&path).unwrap();
    assert!(!format!("{credentials:?} {:?}", Login::new("app", "two")).contains("two"));
}

#[tokio::test]
async fn a_refused_login_is_asked_for_once_more() {
    let (credentials, asked) = passwords(1);
    takes(&credentials, "1").await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    let (unchanged, asked) = passwords(2);
    assert_eq!(takes(&unchanged, "1").await.unwrap_err().kind(), ErrorKind::Refused, "none was accepted before");
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    let fixed = Credentials::from(Login::of_password("0"));
    takes(&fixed, "0").await.unwrap();
    assert_eq!(takes(&fixed, "1").await.unwrap_err().kind(), ErrorKind::Refused, "it will be the same again");
}

/// The file may get the new password later than the server.
#[tokio::test(start_paused = true)]
async fn a_login_after_an_accepted_one_is_not_refused_at_once() {
    let (credentials, _) = passwords(1_000);
    takes(&credentials, "0").await.unwrap();
    let error = takes(&credentials, "new").await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("WRONGPASS"), "{error:?}");
    let another = credentials.or(&Credentials::default());
    assert_eq!(takes(&another, "new").await.unwrap_err().kind(), ErrorKind::Refused, "another server accepted none");
    advance(Duration::from_secs(119)).await;
    assert_eq!(takes(&credentials, "new").await.unwrap_err().kind(), ErrorKind::Unavailable);
    advance(Duration::from_secs(1)).await;
    assert_eq!(takes(&credentials, "new").await.unwrap_err().kind(), ErrorKind::Refused);
    takes(&credentials, "0").await.unwrap();
    assert_eq!(takes(&credentials, "new").await.unwrap_err().kind(), ErrorKind::Unavailable, "one was accepted since");
}
