//! Leases as their holder gets them: variables, lines for a shell, JSON.

use std::time::{Duration, SystemTime};

use serde_json::json;
use tenure::store::Durable;
use tenure::{Guard, Guards};

use crate::args::Output;

/// Data of one lease.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) name: String,
    pub(crate) token: String,
    pub(crate) fence: Option<String>,
    pub(crate) expires_at: u64,
    /// Copies of the grant, if the store was asked for any.
    pub(crate) durability: Option<Durable>,
}

/// Leases that the command runs under, sorted by name.
#[derive(Debug)]
pub(crate) struct Variables(pub(crate) Vec<Lease>);

impl Variables {
    /// The variables with their values: a line for each name, and the earliest end. No fences where
    /// one has none.
    pub(crate) fn values(&self) -> [(&'static str, Option<String>); 4] {
        let lines = |of: fn(&Lease) -> Option<&str>| Some(self.0.iter().map(of).collect::<Option<Vec<_>>>()?.join("\n"));
        let ends = self.0.iter().map(|lease| lease.expires_at).min();
        [
            ("TENURE_NAME", lines(|lease| Some(&lease.name))),
            ("TENURE_TOKEN", lines(|lease| Some(&lease.token))),
            ("TENURE_FENCE", lines(|lease| lease.fence.as_deref())),
            ("TENURE_EXPIRES_AT", ends.map(|ends| ends.to_string())),
        ]
    }
}

/// Returns the data of each lease.
pub(crate) fn variables(guards: &Guards) -> Variables {
    let now = SystemTime::now();
    let lease = |guard: &Guard| {
        let since_epoch = (now + guard.lease_remaining()).duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Lease {
            name: guard.name().to_string(),
            token: guard.token().to_string(),
            fence: guard.fence().map(|fence| fence.to_string()),
            expires_at: u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX),
            durability: guard.durability(),
        }
    };
    Variables(guards.iter().map(lease).collect())
}

/// The leases as lines that a shell can evaluate, or as JSON: an object, or an array of several.
pub(crate) fn text(output: Output, variables: &Variables, ttl: Duration) -> String {
    if output == Output::Text {
        let lines = variables.values().map(|(variable, value)| match value {
            Some(value) => format!("{variable}={}\n", quoted(&value)),
            None => format!("{variable}=\n"),
        });
        return lines.concat();
    }
    let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    let leases = variables.0.iter().map(|Lease { name, token, fence, expires_at, durability }| {
        let mut lease = json!({ "name": name, "token": token, "fence": fence, "expires_at": expires_at, "ttl_ms": ttl_ms });
        if let Some(Durable { replicas, on_disk, .. }) = durability {
            lease["durability"] = json!({ "replicas": replicas, "on_disk": on_disk });
        }
        lease
    });
    let leases: Vec<_> = leases.collect();
    match &leases[..] {
        [lease] => format!("{lease}\n"),
        leases => format!("{}\n", json!(leases)),
    }
}

/// The text as one word of a shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_a_shell() {
        for (text, word) in [("web-1.42", "web-1.42"), ("two words", "'two words'"), ("it's", r"'it'\''s'"), ("$(x)", "'$(x)'")] {
            assert_eq!(quoted(text), word);
        }
    }

    fn lease(name: &str, fence: Option<&str>, expires_at: u64) -> Lease {
        Lease { name: name.into(), token: "t".into(), fence: fence.map(String::from), expires_at, durability: None }
    }

    fn as_json(leases: Vec<Lease>) -> serde_json::Value {
        serde_json::from_str(&text(Output::Json, &Variables(leases), Duration::from_secs(1))).unwrap()
    }

    #[test]
    fn a_lease_without_a_fence_clears_an_older_one() {
        let printed = text(Output::Text, &Variables(vec![lease("n", None, 5)]), Duration::from_secs(1));
        assert_eq!(printed, "TENURE_NAME=n\nTENURE_TOKEN=t\nTENURE_FENCE=\nTENURE_EXPIRES_AT=5\n");
        let json = as_json(vec![lease("n", None, 5)]);
        assert_eq!(json, json!({ "name": "n", "token": "t", "fence": null, "expires_at": 5, "ttl_ms": 1000 }));
    }

    #[test]
    fn several_leases_have_a_line_each_and_the_earliest_end() {
        let two = || vec![lease("a", Some("8"), 9), lease("b c", Some("7"), 5)];
        let printed = text(Output::Text, &Variables(two()), Duration::from_secs(1));
        assert_eq!(printed, "TENURE_NAME='a\nb c'\nTENURE_TOKEN='t\nt'\nTENURE_FENCE='8\n7'\nTENURE_EXPIRES_AT=5\n");
        let json = as_json(two());
        assert_eq!((json[0]["name"].as_str(), json[1]["expires_at"].as_u64()), (Some("a"), Some(5)), "{json}");
    }
}
