//! Double clicks: each user asks for a gift twice at once.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::Error;
use crate::client::Client;
use crate::process::{Service, Store};

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Store of the locks; a Redis is started without it
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Users, each of whom clicks twice
    #[arg(long, default_value_t = 1_000)]
    users: u64,
}

/// Answers to all clicks.
#[derive(Debug, Default)]
struct Tally {
    gifts: u64,
    refused: u64,
    others: u64,
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(compare(args))
}

async fn compare(args: &Args) -> Result<(), Error> {
    let store = Store::start(args.store.as_deref());
    println!("{:<16}{:>8}{:>10}{:>10}{:>16}", "", "gifts", "refused", "others", "users with two");
    for (name, url) in [("without a lock", None), ("with the layer", Some(&*store.url))] {
        let service = Service::start(url, 2)?;
        let Tally { gifts, refused, others } = click(&service, args.users).await?;
        let doubled = Client::connect(service.at).await?.get("/doubled").await?;
        let doubled = String::from_utf8_lossy(&doubled);
        println!("{name:<16}{gifts:>8}{refused:>10}{others:>10}{doubled:>16}");
        if url.is_some() && doubled != "0" {
            return Err("a user got two gifts, though the layer served the requests".into());
        }
    }
    Ok(())
}

async fn click(service: &Service, users: u64) -> Result<Tally, Error> {
    const AT_ONCE: u64 = 50;
    let mut clicking = JoinSet::new();
    for first in 0..AT_ONCE.min(users) {
        let at = service.at;
        clicking.spawn(async move {
            let mut clients = [Client::connect(at).await?, Client::connect(at).await?];
            let mut answers = Vec::new();
            for user in (first..users).step_by(usize::try_from(AT_ONCE)?) {
                let [one, other] = &mut clients;
                let second = async {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    other.post("/gift", user).await
                };
                let (one, other) = tokio::join!(one.post("/gift", user), second);
                answers.extend([one?, other?]);
            }
            Ok::<_, Error>(answers)
        });
    }
    let mut tally = Tally::default();
    while let Some(answers) = clicking.join_next().await {
        for (status, body) in answers?? {
            match status.as_u16() {
                200 if body.starts_with(b"a gift") => tally.gifts += 1,
                409 => tally.refused += 1,
                _ => tally.others += 1,
            }
        }
    }
    Ok(tally)
}
