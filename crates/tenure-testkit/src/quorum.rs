//! Servers of a quorum.

use tenure_redis::Options;

/// Lets the servers of a quorum vote at once, which are new. For any thread, also one of a runtime.
pub fn admit(url: &str) {
    let admit = async || Options::parse(url).unwrap().quorum().await.unwrap().admit().await.unwrap();
    let alone = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(admit());
    std::thread::scope(|scope| scope.spawn(alone).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
}
