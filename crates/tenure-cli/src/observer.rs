//! Messages while a lock is waited for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::{BootTime, Waiting, format_duration};

use crate::exit::Voice;
use crate::names::Names;
use crate::outage::Outage;

/// Hears what a wait meets. Nothing that it says holds up the wait.
#[derive(Debug)]
pub(crate) struct Observer {
    voice: Voice,
    /// The names, and how long to wait, in words.
    what: String,
    heard: Arc<Mutex<State>>,
}

/// State of the wait, by the last answers of the store.
#[derive(Debug, Default)]
struct State {
    /// Who holds it, in words, once the store has said that somebody does.
    holder: Option<String>,
    outage: Outage,
}

impl Observer {
    pub(crate) fn new(names: &Names, wait: Option<Duration>, voice: Voice) -> Self {
        // A try waits for nobody.
        let voice = if wait == Some(Duration::ZERO) { Voice::Quiet } else { voice };
        let limit = wait.map_or_else(String::new, |wait| format!(" for at most {}", format_duration(wait)));
        Self { voice, what: format!("waiting{limit} for {names}"), heard: Arc::default() }
    }

    /// Callback for the wait.
    pub(crate) fn callback(&self) -> impl Fn(Waiting<'_>) + Send + Sync + 'static {
        let (voice, what, heard) = (self.voice, self.what.clone(), Arc::clone(&self.heard));
        move |waiting| match waiting {
            Waiting::Busy(holder) => {
                let text = holder.map_or_else(|| "another holds it".to_owned(), |holder| format!("held by {holder}"));
                drop(voice.detail_aside(format_args!("{what}: {text}")));
                heard.lock().unwrap_or_else(PoisonError::into_inner).holder = Some(text);
            }
            Waiting::Outage(error) | Waiting::OutageGoesOn(error) => {
                let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
                // The holder may have changed when the store serves again.
                heard.holder = None;
                if let Some(lasting) = heard.outage.failed(&error.to_string(), BootTime::now()) {
                    drop(voice.say_aside(format_args!("the store does not serve us{lasting}, {error}; waiting goes on")));
                }
            }
            Waiting::Recovered if heard.lock().unwrap_or_else(PoisonError::into_inner).outage.is_over() => {
                drop(voice.say_aside("the store serves us again"));
            }
            _ => {}
        }
    }

    /// Says for whom it waits, unless that was said in detail. Returns `false` if the store has not said
    /// yet that somebody holds.
    pub(crate) fn say_who_holds(&self) -> bool {
        let holder = self.heard.lock().unwrap_or_else(PoisonError::into_inner).holder.clone();
        if let (Voice::Normal, Some(holder)) = (self.voice, &holder) {
            drop(self.voice.say_aside(format_args!("{}: {holder}", self.what)));
        }
        holder.is_some()
    }
}
