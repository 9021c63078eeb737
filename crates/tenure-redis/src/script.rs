//! The Lua scripts, and their calls.

use std::sync::LazyLock;

use crate::commands::{Commands, Digits};
use crate::keys::Key;

/// A script and the digest by which a server knows it.
pub(crate) struct Script {
    text: &'static str,
    digest: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, digest: redis::Script::new(text).get_hash().to_owned() }
    }
}

macro_rules! script {
    ($($file:literal),+) => {
        LazyLock::new(|| Script::new(concat!($(include_str!(concat!("scripts/", $file)), "\n"),+)))
    };
}

pub(crate) static LIFT: LazyLock<Script> = script!("fence.lua", "lift.lua");
pub(crate) static ACQUIRE: LazyLock<Script> = script!("keys.lua", "fence.lua", "holders.lua", "queue.lua", "acquire.lua");
pub(crate) static RENEW: LazyLock<Script> = script!("renew.lua");
pub(crate) static RENEW_SHARES: LazyLock<Script> = script!("renew-shares.lua");
pub(crate) static RELEASE: LazyLock<Script> =
    script!("release-free.lua", "keys.lua", "fence.lua", "holders.lua", "queue.lua", "release.lua");

/// How a script is named to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// By its digest: short, and unknown to a server that has restarted or was flushed.
    Digest,
    /// By its text, which the server then knows by its digest as well.
    Text,
}

/// A call of `script`, as the only command.
pub(crate) fn call(script: &Script, form: Form, keys: &[Key<'_>], args: &[&[u8]]) -> Commands {
    let mut commands = Commands::new();
    add_call(&mut commands, script, form, keys, args);
    commands
}

/// Adds a call of `script`.
pub(crate) fn add_call(commands: &mut Commands, script: &Script, form: Form, keys: &[Key<'_>], args: &[&[u8]]) {
    commands.begin(3 + keys.len() + args.len());
    let (name, script) = match form {
        Form::Digest => ("EVALSHA", &*script.digest),
        Form::Text => ("EVAL", script.text),
    };
    commands.word(name.as_bytes());
    commands.word(script.as_bytes());
    commands.word(Digits::of(keys.len() as u64).as_bytes());
    for key in keys {
        commands.joined(key);
    }
    for word in args {
        commands.word(word);
    }
}
