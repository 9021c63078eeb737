//! Texts below the flags of a command.

pub(super) const STORE_HELP: &str = "Where locks are kept: sqlite:PATH, redis://, rediss:// or redis+unix:// (or valkey), \
redis+sentinel://, redis+cluster://, quorum+redis://, postgres://, mysql://, etcd://, zookeeper:// or memcached://. Otherwise TENURE_STORE, the config file, or a file of this user alone. See `tenure help store`";

pub(super) const AFTER: &str = "\
Exit codes: the command's own, or 128+n if signal n ended it
  75  another holds the name               79  the lock was lost meanwhile
  69  the store gives no answer            77  the store refuses
  74  the embedded file cannot be used     64  usage      78  configuration
  126, 127  the command cannot be run, or was not found
   1  break: nothing was broken; show --check: the name is free

More: `tenure run --help` shows the common uses. `tenure help store` has the
URLs, their parameters, passwords and rights; `tenure help config` the config
file; `tenure help codes` all exit codes; `tenure help words` what words mean.";

pub(super) const MIGRATION_HELP: &str = "\
The statements may be run again; they change nothing then. Only the kind of
database and table= of the store URL matter:
  tenure migration --store 'postgres://db/app?table=ops.locks' | psql app
  tenure migration --store mysql://db/app | mariadb app
With create=yes in the URL, tenure runs them itself when the table is missing.";

pub(super) const BREAK_HELP: &str = "\
On a terminal it asks first. The store compares the owner that was shown in the
step that takes the name from it: who took the name meanwhile keeps it.
  tenure break --if-held-by web-1 --fence 81920 ledger

Exit codes: 0 broken; 1 nothing was: the name is free, or another holds it
  77  its value is no lock of tenure: see --foreign";

pub(super) const SHOW_HELP: &str = "\
FENCE and AGE (how long it has been held) are - where the store does not say.
TTL is what is left of the lease, and none for a lock that never ends by itself.
\"nobody (after X)\": X has released it, and it stays taken for --min-hold.
The waiters of one NAME are listed in order, those of all names are counted.";

pub(super) const RUN_HELP: &str = "\
Common uses:
  A cron job that must not run twice, on however many machines. The second
  gives up at once (exit 75):
    tenure run -n --store redis://cache nightly-report -- ./report.sh

  One after the other: wait for the name, here at most five minutes:
    tenure run -w 5m deploy/web -- ./deploy.sh

  A resource that is safe even from a holder that was paused longer than its
  lease: hand it TENURE_FENCE, and let it refuse any number smaller than the
  largest it has seen:
    tenure run ledger -- sh -c \\
      'curl -T day.json -H \"Fence: $TENURE_FENCE\" https://ledger/day'

  Many readers or one writer, five at a time, two things or neither:
    tenure run --shared site -- ./serve.sh
    tenure run --write site -- ./edit.sh
    tenure run --permits 1/5 downloads -- ./fetch.sh
    tenure run -a account/2 account/1 -- ./transfer.sh

  A job of a schedule, on five hosts whose clocks differ: one run an hour.
  The name stays taken for half an hour, by nobody when the job has ended:
    tenure run --once-per 1h --store redis://cache report -- ./report.sh

  Start it again whenever it ended because the lock was lost. For a service
  that runs on the host that leads, see `tenure lead`:
    tenure run --restart --store redis://cache leader -- ./serve.sh

The command gets TENURE_NAME, TENURE_TOKEN, TENURE_FENCE (the fencing token) and
TENURE_EXPIRES_AT (Unix milliseconds; renewals move it). With -a the first three
have a line for each name, sorted by name, and the last is the earliest.
TENURE_STORE is the store in use, without its password: a tenure in the command
asks the same one. It runs in a process group of its own.
If the lock is lost, that group gets TERM and, after --kill-after, KILL. If
renewals fail, it is gone before anyone else can hold the name. If the lock is
broken or deleted, the next holder may start at once: the next renewal finds
out, a third of the ttl later at most. TENURE_FENCE is for that time.
If tenure is stopped or killed, it can end nothing itself. On Linux its
guardian, a process of its own, kills the command's process group: shortly
before the lease ends if tenure is stopped, at once if it is killed. What has
left the group goes on. If the guardian is stopped or killed too, the group goes
on as well. TENURE_FENCE is for that, too.
What the command leaves in the background when it ends is no longer protected.
A command that becomes another user is beyond our signals: write
`sudo tenure run ...`, not `tenure run ... sudo`.

Exit codes: the command's own, or 128+n if signal n ended it
  75  another holds the name (see -E)      79  lost, or ended by --max-hold
  69  the store gives no answer            77  the store refuses
  74  the embedded file cannot be used     64  usage      78  configuration
  126, 127  the command cannot be run, or was not found

Durations (DUR): 500ms, 30s, 5m, 1m30s, 1h, 1d; a bare number is seconds.
The password of a store: TENURE_PASSWORD, TENURE_PASSWORD_FILE, or the config
file; never needed in the arguments. See `tenure help store`.";

pub(super) const LEAD_HELP: &str = "\
A service that runs on one of several hosts, each of which has this line:
    tenure lead --store redis://cache billing -- ./serve.sh

One candidate leads at a time. The others wait in order. If the leader is lost,
its command gets TERM and, after --kill-after, KILL. If renewals fail, it is
gone before anyone else can lead. Then this host campaigns again.

When the command ends by itself, this host resigns, and the next candidate leads
at once. It campaigns again: at once if the command ran for a minute, else after
a pause of 1 s, which doubles with each such end, to a minute at most.

TERM, INT and QUIT are passed on to the command. When it has ended, and what it
left behind, so has this: with its exit code, or 128+n before it ran. A command
that is not there or not executable ends it as well, before it campaigns, with
126 or 127. A command that ran and ended with these is run again. A HUP ends it
if the command dies of it. While no command runs, a HUP ends it on a terminal
alone.

What the command leaves behind gets TERM and, after --kill-after, KILL, before
another host can lead.

If tenure is stopped or killed, it can end nothing itself. On Linux its
guardian, a process of its own, kills the command's process group: shortly
before the lease ends if tenure is stopped, at once if it is killed. What has
left the group goes on. If the guardian is stopped or killed too, the group goes
on as well. TENURE_FENCE is for that, too.

An outage of the store ends nothing. It is reported at once, again at growing
intervals, and when it is over.

The command gets the variables of `tenure run`, TENURE_FENCE among them.
`tenure show -w NAME` follows who leads. It looks five times a second, so a
leader of a shorter time may be left out.

Exit codes: the command's own, or 128+n if signal n ended it
  79  asked to end while it was losing the lead
  69  no event loop, or no signals         77  the store refuses
  74  the embedded file cannot be used     64  usage      78  configuration
  126, 127  the command cannot be run, or was not found";

pub(super) const ACQUIRE_HELP: &str = "\
For scripts that cannot wrap a command:
  lease=$(tenure acquire --ttl 10m nightly) || exit; eval \"$lease\"
  tenure renew nightly --token \"$TENURE_TOKEN\" --ttl 10m || exit
  tenure release nightly --token \"$TENURE_TOKEN\"

Or have it renewed in the background for as long as the script lives:
  lease=$(tenure acquire --watch-pid $$ nightly) || exit; eval \"$lease\"

With -a each variable but the last has a line for each name, sorted by name, and
-o json prints an array. Each name is renewed and released with its own token;
the kind need not be said again.

Without --watch-pid nobody renews the lease but `tenure renew`. With it, the
process gets TERM --kill-after before the lease ends, if it is lost.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_of_the_help_is_wider_than_a_terminal() {
        let pages = crate::help::TOPICS.map(|(_, page)| crate::help::filled(page));
        let pages = pages.iter().map(String::as_str);
        for line in
            [AFTER, BREAK_HELP, SHOW_HELP, RUN_HELP, LEAD_HELP, ACQUIRE_HELP].into_iter().chain(pages).flat_map(str::lines)
        {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
