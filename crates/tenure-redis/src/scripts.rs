//! The Lua scripts, and their calls.
//!
//! The scripts that hand over are also a library of functions, for servers that keep such (Redis 7,
//! Valkey) and let this user load and call them. A call takes three quarters of the time that a
//! script takes.

use std::sync::LazyLock;

use crate::transport::commands::{Commands, Digits, Key};
use crate::transport::form::Form;

/// A script, and its digest, by which a server knows it.
pub(crate) struct Script {
    text: String,
    digest: String,
    /// Its library, and the name of its function there.
    function: Option<(&'static LazyLock<Library>, &'static str)>,
}

impl Script {
    fn new(parts: &[&str]) -> Self {
        let text = parts.concat();
        Self { digest: digest(&text), text, function: None }
    }

    fn or_function(self, function: &'static str) -> Self {
        Self { function: Some((&LIBRARY, function)), ..self }
    }

    fn or_node_function(self, function: &'static str) -> Self {
        Self { function: Some((&NODE_LIBRARY, function)), ..self }
    }
}

fn digest(text: &str) -> String {
    redis::Script::new(text).get_hash().to_owned()
}

macro_rules! text {
    ($($file:literal),+) => {
        concat!($(include_str!(concat!("scripts/", $file)), "\n"),+)
    };
}

pub(crate) static RAISE_COUNTER: LazyLock<Script> = LazyLock::new(|| Script::new(&[text!("fence.lua", "raise-counter.lua")]));
pub(crate) static RENEW: LazyLock<Script> = LazyLock::new(|| Script::new(&[text!("renew.lua")]));
pub(crate) static RENEW_SHARES: LazyLock<Script> = LazyLock::new(|| Script::new(&[text!("renew-shares.lua")]));
pub(crate) static NOTE_HOLDERS: LazyLock<Script> = LazyLock::new(|| Script::new(&[text!("note.lua", "note-holders.lua")]));
pub(crate) static ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[about_a_name(), text!("acquire.lua"), "return acquire(KEYS, ARGV)"]).or_function("acquire"));
pub(crate) static SET_NX_ACQUIRE: LazyLock<Script> = LazyLock::new(|| Script::new(&[text!("set-nx-acquire.lua")]));
pub(crate) static SET_NX_RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(&[text!("set-nx-release.lua")]));
pub(crate) static MAJORITY_ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[text!("majority.lua", "majority-acquire.lua")]));
pub(crate) static MAJORITY_RENEW: LazyLock<Script> = LazyLock::new(|| Script::new(&[text!("majority-renew.lua")]));
pub(crate) static MAJORITY_RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(&[text!("majority-release.lua")]));
pub(crate) static MAJORITY_INSPECT: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[text!("majority.lua", "majority-inspect.lua")]));
pub(crate) static TIMESTAMP_ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[text!("timestamp.lua", "timestamp-acquire.lua")]));
pub(crate) static TIMESTAMP_RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[text!("timestamp.lua", "timestamp-renew.lua")]));
pub(crate) static TIMESTAMP_RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[text!("timestamp.lua", "timestamp-release.lua")]));
pub(crate) static REDISSON_ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&[text!("fence.lua", "redisson-token.lua", "redisson.lua", "redisson-lock.lua", "redisson-acquire.lua")])
});
pub(crate) static REDISSON_RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[text!("redisson-publish.lua", "redisson-unlock.lua", "redisson-release.lua")]));
pub(crate) static REDISSON_RENEW: LazyLock<Script> = LazyLock::new(|| Script::new(&[text!("redisson-renew.lua")]));
pub(crate) static REDISSON_FAIR_ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
    let parts = text!(
        "fence.lua",
        "redisson-token.lua",
        "redisson.lua",
        "redisson-lock.lua",
        "now.lua",
        "redisson-publish.lua",
        "redisson-queue.lua",
        "redisson-fair-acquire.lua"
    );
    Script::new(&[parts])
});
pub(crate) static REDISSON_FAIR_RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&[text!(
        "redisson-unlock.lua",
        "redisson.lua",
        "now.lua",
        "redisson-publish.lua",
        "redisson-queue.lua",
        "redisson-fair-release.lua"
    )])
});
pub(crate) static REDISSON_RW_ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&[text!("fence.lua", "redisson-token.lua", "redisson.lua", "redisson-publish.lua", "redisson-rw-acquire.lua")])
});
pub(crate) static REDISSON_RW_RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[text!("redisson.lua", "redisson-publish.lua", "redisson-rw-release.lua")]));
pub(crate) static REDISSON_PERMITS_ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&[text!(
        "fence.lua",
        "redisson-token.lua",
        "now.lua",
        "redisson-publish.lua",
        "redisson-permits.lua",
        "redisson-permits-acquire.lua"
    )])
});
pub(crate) static REDISSON_PERMITS_RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&[text!("now.lua", "redisson-publish.lua", "redisson-permits.lua", "redisson-permits-release.lua")])
});
pub(crate) static REDISSON_RENEW_SHARES: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&[text!("redisson.lua", "now.lua", "redisson-publish.lua", "redisson-permits.lua", "redisson-renew-shares.lua")])
});
pub(crate) static REDISSON_INSPECT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&[text!(
        "redisson.lua",
        "now.lua",
        "redisson-publish.lua",
        "redisson-queue.lua",
        "redisson-permits.lua",
        "redisson-inspect.lua"
    )])
});
pub(crate) static TIMESTAMP_INSPECT: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[text!("timestamp.lua", "timestamp-inspect.lua")]));
pub(crate) static ACQUIRE_ALL: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&[about_a_name(), text!("acquire-all.lua"), "return acquire_all(KEYS, ARGV)"]).or_function("acquire_all")
});
pub(crate) static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    let free = [text!("release-free.lua"), "local done = release_free(KEYS, ARGV)\nif done then return done end\n"];
    Script::new(&[free[0], free[1], about_a_name(), text!("release.lua"), "return release(KEYS, ARGV)"]).or_function("release")
});

pub(crate) static NODE_ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
    let first =
        [text!("node-ends.lua", "node.lua", "node-take.lua"), "local taken = take(KEYS, ARGV)\nif taken then return taken end\n"];
    let parts = [first[0], first[1], at_a_node(), "return node_acquire(KEYS, ARGV)"];
    Script::new(&parts).or_node_function("node_acquire")
});
pub(crate) static NODE_RELEASE: LazyLock<Script> = LazyLock::new(|| {
    let parts = text!("node-ends.lua", "release-free.lua", "hints.lua");
    Script::new(&[parts, about_a_name(), text!("release.lua", "node-release.lua"), "return node_release(KEYS, ARGV)"])
        .or_node_function("node_release")
});
pub(crate) static NODE_CONFIRM: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&[text!("node.lua", "node-confirm.lua"), "return confirm(KEYS, ARGV)"]).or_node_function("node_confirm")
});
pub(crate) static NODE_ENTER: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[text!("node-ends.lua", "node.lua", "node-enter.lua")]));
pub(crate) static NODE_NOTE: LazyLock<Script> = LazyLock::new(|| Script::new(&[text!("node.lua", "node-note.lua")]));
pub(crate) static NODE_ADMIT: LazyLock<Script> = LazyLock::new(|| Script::new(&[text!("node.lua", "node-admit.lua")]));
pub(crate) static NODE_RENEW: LazyLock<Script> = LazyLock::new(|| node_renew(text!("renew.lua"), "1"));
pub(crate) static NODE_RENEW_SHARES: LazyLock<Script> = LazyLock::new(|| node_renew(text!("renew-shares.lua"), "2"));

static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    let parts =
        [text!("release-free.lua"), about_a_name(), text!("acquire.lua", "acquire-all.lua", "release.lua", "functions.lua")];
    Library::new(&parts.concat())
});

static NODE_LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    let release = text!("release-free.lua", "release.lua", "node-release.lua");
    let parts = [
        text!("node-ends.lua", "node.lua", "node-take.lua"),
        at_a_node(),
        release,
        text!("node-confirm.lua", "node-functions.lua"),
    ];
    Library::new(&parts.concat())
});

fn node_renew(renew: &str, step: &str) -> Script {
    let first = [text!("node-ends.lua"), "local STEP = ", step, "\nlocal function renew(KEYS, ARGV)\n", renew, "end\n"].concat();
    Script::new(&[&first, text!("node-renew.lua")])
}

/// The parts of an acquisition at a node after the first.
fn at_a_node() -> &'static str {
    text!("keys.lua", "node-counter.lua", "note.lua", "holders.lua", "queue.lua", "acquire.lua", "hints.lua", "node-acquire.lua")
}

/// The common parts of the scripts about names.
fn about_a_name() -> &'static str {
    text!("keys.lua", "fence.lua", "note.lua", "holders.lua", "queue.lua")
}

/// The library of functions. Each version has names of its own at the server.
struct Library {
    version: String,
    text: String,
}

impl Library {
    fn new(text: &str) -> Self {
        let version = digest(text)[..12].to_owned();
        let text = format!("#!lua name=tenure_{version}\n{}", text.replace("VERSION", &version));
        Self { version, text }
    }
}

/// A call of `script`, as the only command.
pub(crate) fn call(script: &Script, form: Form, keys: &[Key<'_>], args: &[&[u8]]) -> Commands {
    let mut commands = Commands::new();
    add_call(&mut commands, script, form, keys, args);
    commands
}

/// Adds a call of `script`: one command, or two if the form is [`Form::Loaded`].
pub(crate) fn add_call(commands: &mut Commands, script: &Script, form: Form, keys: &[Key<'_>], args: &[&[u8]]) {
    if form == Form::Loaded {
        let library = script.function.map_or(&LIBRARY, |(library, _)| library);
        commands.add(&[b"FUNCTION", b"LOAD", library.text.as_bytes()]);
    }
    commands.begin(3 + keys.len() + args.len());
    match (form, script.function) {
        (Form::Function | Form::Loaded, Some((library, function))) => {
            commands.word(b"FCALL");
            commands.joined(&[b"tenure_", function.as_bytes(), b"_", library.version.as_bytes()]);
        }
        (Form::Function | Form::Loaded | Form::Digest, _) => {
            commands.word(b"EVALSHA");
            commands.word(script.digest.as_bytes());
        }
        (Form::Text, _) => {
            commands.word(b"EVAL");
            commands.word(script.text.as_bytes());
        }
    }
    commands.word(Digits::of(keys.len() as u64).as_bytes());
    for key in keys {
        commands.joined(key);
    }
    for word in args {
        commands.word(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Others put the texts together as the page says.
    #[test]
    fn the_wire_spec_has_the_digests() {
        let page = include_str!("../../../docs/wire.md");
        for (name, script) in [
            ("acquire", &ACQUIRE),
            ("acquire-all", &ACQUIRE_ALL),
            ("release", &RELEASE),
            ("renew", &RENEW),
            ("renew-shares", &RENEW_SHARES),
            ("raise-counter", &RAISE_COUNTER),
            ("note-holders", &NOTE_HOLDERS),
        ] {
            let row = format!("| `{name}` | `{}` |", script.digest);
            assert!(page.contains(&row), "docs/wire.md does not have {row}; if clients see the change, it has to say so");
        }
    }
}
