//! Everything that a tenant is known to have tried, or could.

mod asks;
mod barriers;
mod bulk_ends;
mod conditions;
mod connections;
mod large_payloads;
mod latches;
mod permits;
mod strangers;
mod wait_graph;
mod watches_and_reads;

pub(crate) use connections::acquire_and_release;

use std::time::Duration;

use futures::future::BoxFuture;

use super::attacker::Attacker;

/// Why an attack was not done to its end.
pub(crate) type AttackResult = Result<(), String>;
/// One round of an attack.
pub(crate) type AttackFn = fn(Attacker) -> BoxFuture<'static, AttackResult>;

/// One thing that a hostile account does, in one round.
pub(crate) struct Attack {
    /// By what it is chosen.
    pub name: &'static str,
    /// What it does in its full size.
    pub what: &'static str,
    /// What its own calls may take, by what they are.
    pub limits: &'static [(&'static str, Duration)],
    /// By how much the memory of a process may grow meanwhile for each account that attacks, in MiB.
    pub max_growth_mib: u64,
    /// Does it.
    pub run: AttackFn,
}

/// What one account may have a process grow by, in MiB, unless an attack says otherwise.
const DEFAULT_MAX_GROWTH_MIB: u64 = 1_536;
const MS_50: Duration = Duration::from_millis(50);
const MS_250: Duration = Duration::from_millis(250);
const S_5: Duration = Duration::from_secs(5);

impl Attack {
    const fn new(name: &'static str, what: &'static str, run: AttackFn) -> Self {
        Self { name, what, limits: &[], max_growth_mib: DEFAULT_MAX_GROWTH_MIB, run }
    }

    const fn with_limits(self, limits: &'static [(&'static str, Duration)]) -> Self {
        Self { limits, ..self }
    }

    const fn with_max_growth_mib(self, max_growth_mib: u64) -> Self {
        Self { max_growth_mib, ..self }
    }
}

/// All of them, in the order in which they are run.
pub(crate) const ALL: &[Attack] = &[
    Attack::new("tangle", "200 owners with 66 holds each wait for two locks, and try them again and again", |enemy| {
        Box::pin(wait_graph::tangle(enemy))
    })
    .with_limits(&[("a refused try", MS_50), ("a release among them", MS_50)]),
    Attack::new("behind", "3,811 requests of a connection that wait for one another, each behind the other", |enemy| {
        Box::pin(wait_graph::behind(enemy))
    }),
    Attack::new("below", "20,000 wait for everything, above 1,001 read holds that end one by one", |enemy| {
        Box::pin(wait_graph::below(enemy))
    })
    .with_limits(&[("a release below", MS_50)]),
    Attack::new("above", "20,000 wait for paths below one hold, which ends; and for one above all", |enemy| {
        Box::pin(wait_graph::above(enemy))
    }),
    Attack::new("own-line", "one owner asks 10,000 times for the same two locks", |enemy| {
        Box::pin(wait_graph::own_line(enemy))
    }),
    Attack::new(
        "cycle",
        "a request for everything among 10,000 holds, again and again, that could close a cycle",
        |enemy| Box::pin(wait_graph::cycle(enemy)),
    ),
    Attack::new("hang-ups", "10,000 callers that wait for a lock hang up together", |enemy| {
        Box::pin(wait_graph::hang_ups(enemy))
    }),
    Attack::new("waits", "70,000 callers wait for a lock at one gateway, and hang up together", |enemy| {
        Box::pin(wait_graph::waits(enemy))
    }),
    Attack::new("session-end", "a session with 200,000 holds ends", |enemy| Box::pin(bulk_ends::session(enemy))),
    Attack::new("sessions-end", "500 sessions with 200 holds each end at once, and 500 expire together", |enemy| {
        Box::pin(bulk_ends::sessions(enemy))
    }),
    Attack::new("expiry", "100,000 holds end at one instant", |enemy| Box::pin(bulk_ends::expiry(enemy))),
    Attack::new("ticks", "each of 10,000 milliseconds is the deadline of a hold", |enemy| {
        Box::pin(bulk_ends::ticks(enemy))
    }),
    Attack::new("release-all", "an owner gives up 100,000 holds in one call", |enemy| {
        Box::pin(bulk_ends::release_all(enemy))
    }),
    Attack::new("delete", "a lock with 1,000 readers and their metadata is deleted, again and again", |enemy| {
        Box::pin(bulk_ends::delete(enemy))
    }),
    Attack::new("reset", "a namespace of 50,000 holds of 800 owners is reset, with 400 that live", |enemy| {
        Box::pin(bulk_ends::reset(enemy))
    }),
    Attack::new("purge", "namespaces of 20,000 holds are deleted, and others made and deleted without end", |enemy| {
        Box::pin(bulk_ends::purge(enemy))
    }),
    Attack::new("metadata", "700 requests of 64 claims with as many pairs of metadata as fit", |enemy| {
        Box::pin(large_payloads::metadata(enemy))
    })
    .with_max_growth_mib(200),
    Attack::new("named", "30,000 requests with an id each for the same 64 holds; then the session ends", |enemy| {
        Box::pin(large_payloads::named(enemy))
    })
    .with_max_growth_mib(100),
    Attack::new("deep", "1,000 requests of 64 KiB: paths of 16 segments that nobody else has", |enemy| {
        Box::pin(large_payloads::deep(enemy))
    }),
    Attack::new("replies", "128 requests at a time for 64 locks, each with 16 readers of 1 KiB", |enemy| {
        Box::pin(large_payloads::replies(enemy))
    }),
    Attack::new(
        "unread-answers",
        "100 connections ask for 200 pages of 1,000 holds each, and read no answer",
        |enemy| Box::pin(large_payloads::unread_answers(enemy)),
    ),
    Attack::new("session-flood", "10 sessions send 200 requests of 64 KiB each, and read no answer", |enemy| {
        Box::pin(large_payloads::session_flood(enemy))
    }),
    Attack::new("lock-info", "a session of 17,000 holds says what it holds, again and again", |enemy| {
        Box::pin(connections::lock_info(enemy))
    }),
    Attack::new("keep-alives", "keep-alives of a session of 10,000 owners, as fast as possible", |enemy| {
        Box::pin(connections::keep_alives(enemy))
    }),
    Attack::new("reconnects", "50 sessions resume on new connections, again and again", |enemy| {
        Box::pin(connections::reconnects(enemy))
    }),
    Attack::new(
        "notices",
        "a session of 4,000 requests is told that all of its holds end, and reads nothing",
        |enemy| Box::pin(connections::notices(enemy)),
    ),
    Attack::new("connections", "1,100 connections to one gateway", |enemy| Box::pin(connections::connections(enemy))),
    Attack::new("open-calls", "28,000 looks and releases at once at one gateway", |enemy| {
        Box::pin(connections::open_calls(enemy))
    }),
    Attack::new("account-reads", "64 readers of usage, audit, keys and namespaces, who also make tokens", |enemy| {
        Box::pin(connections::account_reads(enemy))
    }),
    Attack::new("watchers", "300 watchers whose prefix never matches, beside 4,000 pairs", |enemy| {
        Box::pin(watches_and_reads::watchers(enemy))
    }),
    Attack::new("unread", "100 watchers that read nothing, beside 4,000 pairs", |enemy| {
        Box::pin(watches_and_reads::unread(enemy))
    }),
    Attack::new("lists", "lists of 5,000 who wait, and looks at a lock of 1,000 readers of 1 KiB", |enemy| {
        Box::pin(watches_and_reads::lists(enemy))
    }),
    Attack::new(
        "permit-queue",
        "10,000 requests wait for one permit, which is handed on 1,000 times; then all leave",
        |enemy| Box::pin(permits::queue(enemy)),
    )
    .with_limits(&[("a hand-off of a permit", MS_250)]),
    Attack::new("ephemeral", "10,200 ephemeral semaphores are made and dropped, again and again", |enemy| {
        Box::pin(permits::ephemeral(enemy))
    }),
    Attack::new("permits-end", "a session with 9,900 permits ends, which another waits for", |enemy| {
        Box::pin(permits::session_end(enemy))
    })
    .with_limits(&[("the grant of all", S_5)]),
    Attack::new("permit-expiry", "9,900 permits end at one instant, which a request waits for", |enemy| {
        Box::pin(permits::expiry(enemy))
    }),
    Attack::new("permit-shrink", "10,000 requests wait for two permits, and then there is only one", |enemy| {
        Box::pin(permits::shrink(enemy))
    })
    .with_limits(&[("the configuration", MS_250)]),
    Attack::new(
        "pool-changes",
        "a pool of 1,000 members, of which 960 are held and 100 requests want 64, is configured 400 times",
        |enemy| Box::pin(permits::pool_changes(enemy)),
    )
    .with_limits(&[("a configuration", MS_250)]),
    Attack::new(
        "takes",
        "40 sessions take 64 members of a pool of 1,000, or one by its name, again and again",
        |enemy| Box::pin(permits::takes(enemy)),
    ),
    Attack::new("thing-lists", "lists of 500 semaphores, pools and latches each, and of 5,000 who wait", |enemy| {
        Box::pin(permits::lists(enemy))
    }),
    Attack::new("latch-ids", "100,000 ids of a latch are counted down, each of them twice", |enemy| {
        Box::pin(latches::ids(enemy))
    }),
    Attack::new("latch-waiters", "10,000 who wait for a latch are told at once that it is complete", |enemy| {
        Box::pin(latches::waiters(enemy))
    })
    .with_limits(&[("the telling of all", S_5)]),
    Attack::new("latch-hang-ups", "10,000 who wait for a latch hang up together, again and again", |enemy| {
        Box::pin(latches::hang_ups(enemy))
    }),
    Attack::new("barrier-trips", "1,000 parties meet at a barrier, again and again", |enemy| {
        Box::pin(barriers::trips(enemy))
    })
    .with_limits(&[("the telling of all", S_5)]),
    Attack::new("barrier-leaves", "999 parties arrive at each of 10 barriers and leave, again and again", |enemy| {
        Box::pin(barriers::leaves(enemy))
    }),
    Attack::new(
        "barrier-ends",
        "a session ends, whose 1,000 parties keep 1,000 others out of a double barrier, and break another barrier",
        |enemy| Box::pin(barriers::session_ends(enemy)),
    )
    .with_limits(&[("the telling of all", S_5)]),
    Attack::new("awaits", "1,000 await a condition of each of 10 locks, and one signal wakes all of a lock", |enemy| {
        Box::pin(conditions::signal_all(enemy))
    })
    .with_limits(&[("a signal to all", MS_250)]),
    Attack::new("hand-ons", "a signal is handed on by 999 who await it and leave, one by one or together", |enemy| {
        Box::pin(conditions::hand_on(enemy))
    })
    .with_limits(&[("a signal handed on", MS_250), ("the grant of the last", S_5)]),
    Attack::new("signals", "two give a lock to one another by signals, 500 times", |enemy| {
        Box::pin(conditions::pairs(enemy))
    })
    .with_limits(&[("a lock given up", MS_250)]),
    Attack::new(
        "asks",
        "1,000 readers of a lock with 1 KiB of metadata each are asked for it, politely and by a deadline that moves",
        |enemy| Box::pin(asks::readers(enemy)),
    ),
    Attack::new("kept", "locks are taken for 2 s at least and released, again and again", |enemy| {
        Box::pin(asks::kept(enemy))
    }),
    Attack::new("full-rate", "64 callers that never rest, beyond the account's rate", |enemy| {
        Box::pin(connections::full_rate(enemy))
    }),
    Attack::new(
        "strangers",
        "forged keys over REST, gRPC and dlocks as fast as they can be sent, and 300 connections that say nothing",
        |enemy| Box::pin(strangers::forged_keys(enemy)),
    ),
    Attack::new(
        "half-handshakes",
        "strangers at every port begin to say something, and half of them end their side; then 280 at each node",
        |enemy| Box::pin(strangers::half_handshakes(enemy)),
    ),
    Attack::new("garbage", "strangers at every port send what no protocol is", |enemy| {
        Box::pin(strangers::garbage(enemy))
    }),
    Attack::new("slow-heads", "strangers at every port send a byte every 20 ms", |enemy| {
        Box::pin(strangers::slow_heads(enemy))
    }),
    Attack::new("oversized", "strangers at every port send or announce more than is accepted", |enemy| {
        Box::pin(strangers::oversized(enemy))
    }),
    Attack::new("keys", "keys of the account are made and deleted without end", |enemy| {
        Box::pin(connections::keys(enemy))
    }),
];
