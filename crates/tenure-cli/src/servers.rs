//! `tenure show --servers`: which servers of a quorum vote, and what keeps the others out.

use serde_json::{Value, json};
use tenure::compose::quorum::{Memory, Node};
use tenure::store::{Features, Store};
use tenure::{Error, Name};

use crate::args::Output;
use crate::config::Settings;
use crate::exit::Failure;
use crate::output::{millis, print, table};
use crate::store;

/// One server.
struct Row {
    server: String,
    memory: Result<Memory, Error>,
    /// Number of names that are held there, or of this one.
    holds: Option<usize>,
}

/// Prints the servers of a quorum, and how many names each holds.
pub(crate) async fn show(settings: &Settings, name: Option<&Name>, output: Output) -> Result<u8, Failure> {
    let quorum = store::quorum(settings)?;
    let mut rows = Vec::new();
    for (node, memory) in quorum.memories().await {
        let holds = if memory.is_ok() { held(&*node, name, &quorum.features()).await } else { None };
        rows.push(Row { server: node.to_string(), memory, holds });
    }
    match output {
        Output::Json => print(&format!("{}\n", rows.iter().map(Row::to_json).collect::<Value>()))?,
        Output::Text => {
            let cells: Vec<_> = rows.iter().map(Row::cells).collect();
            print(&table(["SERVER", "VOTES", "HOLDS", "WHY NOT"], &cells))?;
        }
    }
    Ok(0)
}

/// How many names a server holds. None if it does not answer in time.
async fn held(node: &dyn Node, name: Option<&Name>, features: &Features) -> Option<usize> {
    // A search of all names takes as long as there are keys.
    let found = async { node.inspect(name).await.ok() };
    let entries = match name {
        Some(_) => tokio::time::timeout(features.limit(std::time::Duration::MAX), found).await.ok().flatten(),
        None => found.await,
    };
    Some(entries?.iter().filter(|entry| !entry.holders.is_empty()).count())
}

impl Row {
    fn cells(&self) -> [String; 4] {
        let dash = || "-".to_owned();
        let (votes, why) = match &self.memory {
            Ok(memory) => match memory.kept_out() {
                None => ("yes", dash()),
                Some((_, why)) => ("no", why),
            },
            Err(error) => ("-", error.to_string()),
        };
        [self.server.clone(), votes.to_owned(), self.holds.map_or_else(dash, |holds| holds.to_string()), why]
    }

    fn to_json(&self) -> Value {
        let [.., why] = self.cells();
        let kept_out = self.memory.as_ref().ok().map(Memory::kept_out);
        let left = kept_out.as_ref().and_then(|kept_out| kept_out.as_ref().map(|(left, _)| millis(*left)));
        json!({
            "server": self.server,
            "votes": kept_out.as_ref().map(Option::is_none),
            "holds": self.holds,
            "kept_out_ms": left,
            "latest_end_ms": self.memory.as_ref().ok().map(|memory| millis(memory.latest_end)),
            "why_not": (why != "-").then_some(why),
        })
    }
}
