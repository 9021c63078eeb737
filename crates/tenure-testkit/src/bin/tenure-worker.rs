//! A holder in a process of its own: `tenure-worker URL`, then orders on standard input.

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::process::ExitCode {
    let Some(url) = std::env::args().nth(1) else {
        eprintln!("usage: tenure-worker URL");
        return std::process::ExitCode::FAILURE;
    };
    tenure_testkit::worker::run(&url).await;
    std::process::ExitCode::SUCCESS
}
