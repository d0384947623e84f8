//! What callers wait for: locks, permits, members, latches, barriers and signals.

use holdfast_testkit::{CallError, CallOutcome, RestClient, eventually, wait_before_retry};
use serde_json::{Value, json};

pub(super) const NAMESPACE: &str = "orders";
pub(super) const THINGS_OF_KIND: usize = 5;
pub(super) const WAITERS_OF_THING: usize = 34;
/// Longer than the test takes.
pub(super) const TTL_MS: u64 = 3_600_000;
/// Of the last latch, which nobody completes. Whoever asks later is told the same.
const EXPIRES_IN_MS: u64 = 20_000;
/// With whoever comes first, and one who comes last.
const PARTIES: usize = WAITERS_OF_THING + 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ThingKind {
    Lock,
    Semaphore,
    Pool,
    Latch,
    Barrier,
    /// Of a lock, which each of those that await it has had.
    Condition,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Thing {
    pub(super) kind: ThingKind,
    pub(super) number: usize,
}

impl Thing {
    pub(super) fn name(self) -> String {
        let kind = match self.kind {
            ThingKind::Lock => "lock",
            ThingKind::Semaphore => "semaphore",
            ThingKind::Pool => "pool",
            ThingKind::Latch => "latch",
            ThingKind::Barrier => "barrier",
            ThingKind::Condition => "condition",
        };
        format!("{kind}-{}", self.number)
    }

    /// A call about it. Of a condition, about its lock.
    fn line(self, verb: &str) -> String {
        let of = match self.kind {
            ThingKind::Lock | ThingKind::Condition => format!("locks/{}", self.name()),
            ThingKind::Semaphore => "semaphores".to_owned(),
            ThingKind::Pool => "pools".to_owned(),
            ThingKind::Latch => "latches".to_owned(),
            ThingKind::Barrier => "barriers".to_owned(),
        };
        format!("POST /v1/namespaces/{NAMESPACE}/{of}/{verb}")
    }

    /// Whether those who wait for it have places.
    pub(super) fn has_queue(self) -> bool {
        self.kind != ThingKind::Latch
    }

    /// Whether nobody completes the latch, or the barrier, from which somebody leaves.
    pub(super) fn is_given_up(self) -> bool {
        matches!(self.kind, ThingKind::Latch | ThingKind::Barrier) && self.number == THINGS_OF_KIND - 1
    }

    /// The generation that a barrier gathers.
    pub(super) async fn generation(self, api: &RestClient) -> u64 {
        let shown = self.repeat(api, "get", json!({"name": self.name()})).await;
        shown["barrier"]["generation"].as_u64().expect("it has one")
    }

    /// Calls again until that is answered.
    async fn repeat(self, api: &RestClient, verb: &str, body: Value) -> Value {
        repeat(api, &self.line(verb), body).await
    }
}

/// Makes a call, one that may be repeated, until it is answered.
async fn repeat(api: &RestClient, line: &str, body: Value) -> Value {
    loop {
        match api.fetch::<Value>(line, Some(body.clone())).await {
            Ok(answer) => return answer,
            Err(error) => assert!(may_come(&error), "{line}: {error}"),
        }
        wait_before_retry().await;
    }
}

fn may_come(error: &CallError) -> bool {
    error.outcome == CallOutcome::Unknown || error.status == 503 || error.status == 0
}

pub(super) fn things() -> impl Iterator<Item = Thing> {
    let of_locks = [ThingKind::Lock, ThingKind::Condition];
    let kinds = [ThingKind::Semaphore, ThingKind::Pool, ThingKind::Latch, ThingKind::Barrier].into_iter();
    kinds.chain(of_locks).flat_map(|kind| (0..THINGS_OF_KIND).map(move |number| Thing { kind, number }))
}

/// Makes all things, so that whoever comes has to wait.
pub(super) async fn make_things(api: &RestClient) {
    let hold = |thing: Thing| {
        json!({
            "name": thing.name(), "process_id": "holder", "request_id": "holder", "ttl_ms": TTL_MS, "permits": 1,
        })
    };
    for thing in things() {
        match thing.kind {
            ThingKind::Lock => drop(api.acquire(NAMESPACE, &thing.name(), "holder").await.expect("it is free")),
            ThingKind::Semaphore => {
                assert_eq!(api.json(&thing.line("acquire"), hold(thing)).await.ok()["success"], true);
            }
            ThingKind::Pool => {
                let members = json!({"name": thing.name(), "members": [{"name": "only"}]});
                api.json(&thing.line("configure"), members).await.ok();
                let mut take = hold(thing);
                take.as_object_mut().expect("it is an object").remove("permits");
                assert_eq!(api.json(&thing.line("take"), take).await.ok()["success"], true);
            }
            ThingKind::Latch => {
                let expires_in_ms = if thing.is_given_up() { EXPIRES_IN_MS } else { TTL_MS };
                let latch = json!({"name": thing.name(), "total": 2, "expires_in_ms": expires_in_ms});
                api.json(&thing.line("create"), latch).await.ok();
            }
            ThingKind::Barrier => {
                let first = json!({
                    "name": thing.name(), "process_id": "holder", "ttl_ms": TTL_MS, "parties": PARTIES,
                });
                assert_eq!(api.json(&thing.line("arrive"), first).await.ok()["outcome"], "WAITING");
            }
            // Its lock is free for whoever comes to await it.
            ThingKind::Condition => {}
        }
    }
}

/// Counts both jobs of a latch, again until that is answered.
pub(super) async fn complete(api: &RestClient, latch: usize) {
    let thing = Thing { kind: ThingKind::Latch, number: latch };
    eventually(&format!("{} is complete", thing.name()), async || {
        let body = json!({"name": thing.name(), "ids": ["first", "last"]});
        let answer = api.fetch::<Value>(&thing.line("count_down"), Some(body)).await;
        match answer.map_err(|error| error.to_string())?["latch"]["status"].as_str() {
            Some("COMPLETED") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// Lets the first of those who wait go on, who then lets the next, or all of them.
pub(super) async fn let_go(api: &RestClient, thing: Thing) {
    match thing.kind {
        ThingKind::Barrier => {
            let generation = thing.generation(api).await;
            // Whoever comes last trips it, and whoever leaves breaks it.
            let (verb, owner, outcome) = match thing.is_given_up() {
                true => ("leave", "holder", "BROKEN"),
                false => ("arrive", "last", "TRIPPED"),
            };
            let mut body = json!({"name": thing.name(), "process_id": owner, "generation": generation});
            if verb == "arrive" {
                body["ttl_ms"] = TTL_MS.into();
            }
            assert_eq!(thing.repeat(api, verb, body).await["outcome"], outcome, "{}", thing.name());
        }
        ThingKind::Condition => {
            signal(api, thing).await;
            release(api, thing, "holder").await;
        }
        _ => release(api, thing, "holder").await,
    }
}

/// Wakes all that await a condition: each by a signal of its own, or all by one.
async fn signal(api: &RestClient, thing: Thing) {
    let acquire = json!({"process_id": "holder", "ttl_ms": TTL_MS});
    assert_eq!(thing.repeat(api, "acquire", acquire).await["success"], true, "nobody has {}", thing.name());
    let line = format!("POST /v1/namespaces/{NAMESPACE}/conditions/signal");
    let wakes_all = thing.number.is_multiple_of(2);
    let (signals, each) = if wakes_all { (1, WAITERS_OF_THING) } else { (WAITERS_OF_THING, 1) };
    for number in 0..signals {
        let body = json!({
            "name": thing.name(), "process_id": "holder", "signal_id": number.to_string(), "all": wakes_all,
        });
        assert_eq!(repeat(api, &line, body).await["signalled"], each, "signal {number} of {}", thing.name());
    }
}

/// Releases, again until that is answered.
pub(super) async fn release(api: &RestClient, thing: Thing, owner: &str) {
    let mut body = json!({"process_id": owner});
    if matches!(thing.kind, ThingKind::Semaphore | ThingKind::Pool) {
        body["name"] = thing.name().into();
        body["request_id"] = owner.into();
    }
    thing.repeat(api, "release", body).await;
}
