//! A holder in a process of its own: `tenure-worker URL`, then orders on standard input.

use tenure::Locker;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), tenure::Error> {
    let url = std::env::args().nth(1).ok_or_else(|| tenure::Error::invalid("usage: tenure-worker URL"))?;
    let locks = match url.strip_prefix("sqlite:") {
        Some(path) => Locker::new(tenure_sql::sqlite::open(path)?),
        None => tenure_redis::connect(&url).await?,
    };
    tenure_testkit::worker::serve(locks).await;
    Ok(())
}
