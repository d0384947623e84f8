//! Woken owners that wait for something else, too: who waits for whom stays known.

use holdfast_core::{Acquire, AcquireOutcome, AwaitCondition, Reason, Wait};

use crate::conditions::{await_command, shard};
use crate::support::{Shard, process};
use crate::wait_requests::{try_request, wait_request, write};

/// Longer than an await.
fn long(request: Acquire) -> Acquire {
    Acquire { ttl_ms: Some(600_000), ..request }
}

fn waits_long(shard: &mut Shard, owner: &str, paths: &[&str]) {
    let claims: Vec<_> = paths.iter().map(|path| write(path)).collect();
    shard.enqueued(Acquire { wait: Wait::For(300_000), ..long(wait_request(owner, &claims)) });
}

/// `p` awaits a condition of `l`, and waits for `m`; `q` waits for both, behind it. When the time of the await is over,
/// `p` overtakes `q`, which waits for it anyway. Then it waits, and has what another one waits for.
#[test]
fn one_that_waits_elsewhere_and_has_its_lock_again_at_once_is_known_to_be_waited_for() {
    let mut shard = shard();
    shard.granted(long(try_request("x", &[write("m")])));
    let token = shard.granted(long(try_request("p", &[write("l")])));
    let awaits = AwaitCondition { ttl_ms: Some(600_000), ..await_command(process("p"), token, "") };
    let outcome = shard.try_await(awaits);
    assert!(matches!(outcome, Ok((AcquireOutcome::Enqueued(_), None))), "{outcome:?}");
    waits_long(&mut shard, "p", &["m"]);
    waits_long(&mut shard, "q", &["m", "l"]);
    shard.advance_by(10_000);
    assert_eq!(shard.holders("l"), ["p"], "its time is over");
    shard.core.verify();
    // Now x would wait for p, which waits for it.
    let closed = shard.outcome(Acquire { wait: Wait::For(300_000), ..long(wait_request("x", &[write("l")])) });
    assert!(matches!(closed, AcquireOutcome::Refused(refused) if refused.reason == Reason::Deadlock));
    shard.core.verify();
}
