//! Whether a world breaks a rule.

use tenure_testkit::history::Rule;

use super::case::Setting;
use super::program::{Client, Stage};
use super::schemes::TTL;
use super::world::World;

impl World {
    /// Whether `rule` is broken now, or was in a step before.
    pub(crate) fn breaks(&self, setting: &Setting, rule: Rule) -> bool {
        let broken = match rule {
            Rule::Overlap => {
                let holders = self.clients.iter().filter(|client| client.is_valid(self.now));
                let weight: u32 = holders.map(|client| setting.weights[usize::from(client.who)]).sum();
                weight > setting.capacity
            }
            Rule::Leak => self.is_taken(setting) && self.is_over(setting),
            Rule::NotGranted => self.is_forgotten(setting),
            other => self.broken.contains(&other),
        };
        broken && (setting.also)(self)
    }

    /// Whether a client regards itself as the holder.
    pub(crate) fn is_held(&self) -> bool {
        self.clients.iter().any(|client| client.is_valid(self.now))
    }

    /// Whether a client's lease has ended before it gave it up.
    pub(crate) fn has_lapsed(&self, client: &Client) -> bool {
        client.died.is_none() && client.hold.is_some() && !client.is_valid(self.now)
    }

    /// Whether anybody has a part of the name at the server.
    fn is_taken(&self, setting: &Setting) -> bool {
        let now = self.now + self.jumped;
        self.server.is_taken(now) && setting.scheme.free != Some(self.server.at_lock(now).value)
    }

    /// Nobody holds, nobody is about to, and each client that died did so longer than a lease ago.
    fn is_over(&self, setting: &Setting) -> bool {
        let over = |client: &Client| match client.died {
            Some(died) => self.now > died + TTL,
            None => client.is_idle() || (setting.scheme_of(client.who).fixed && self.has_lapsed(client)),
        };
        self.clients.iter().all(over) && self.clients.iter().any(|client| client.takes > 0)
    }

    /// Somebody waits for a message that nobody will send, for a name that is free.
    fn is_forgotten(&self, setting: &Setting) -> bool {
        let waits = |client: &Client| matches!(client.lanes[0].stage, Stage::Listening(_)) && client.died.is_none();
        let over = |client: &Client| client.died.is_some() || (client.is_idle() && client.takes == 1);
        !self.is_taken(setting)
            && self.server.mail.is_empty()
            && self.clients.iter().any(waits)
            && self.clients.iter().all(|client| waits(client) || over(client))
    }
}
