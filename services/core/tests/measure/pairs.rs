//! What a pair of a session takes, an acquire and the release after it, as a connection sends them: time, bytes of
//! commands and replies; and the memory of many such holds.

use std::time::{Duration, Instant};

use holdfast_core::{
    Acquire, Claim, Command, EntryContext, LocksCommand, MessageSeq, Mode, Owner, Path, Release, ReleaseTarget, Reply,
    Rules, SessionAcquire, SessionCommand, SessionRequest, Wait, codec,
};
use stats_alloc::Region;

use crate::shard::{Shard, namespace};
use crate::{ALLOCATOR, exclusive};

const SESSION: &str = "se_3m9qkz7dvx4hbn2w8rtyc6pfga";

fn seq(shard: &Shard, seq: u64) -> Option<MessageSeq> {
    let epoch = shard.core.sessions().next().expect("it is open").epoch;
    Some(MessageSeq { epoch, seq })
}

fn owner() -> Owner {
    Owner::Session { session_id: SESSION.into(), holder: None }
}

fn acquire(name: &str, request_id: &str, message: Option<MessageSeq>) -> Command {
    let request = Shard::request(owner(), &[name], Mode::Write);
    let request_id = Some(request_id.to_owned());
    Command::Locks(LocksCommand::Acquire(Acquire { request_id, wait: Wait::Unlimited, message, ..request }))
}

fn release(request_id: &str, message: Option<MessageSeq>) -> Command {
    let what = ReleaseTarget::Request { request_id: request_id.to_owned() };
    Command::Locks(LocksCommand::Release(Release { namespace: namespace(), owner: owner(), what, message }))
}

/// A shard with a session that holds so much.
fn shard_with(holds: u64) -> Shard {
    let mut shard = Shard::new();
    shard.open_session(SESSION);
    add_holds(&mut shard, 0, holds);
    shard
}

fn add_holds(shard: &mut Shard, from: u64, to: u64) {
    for index in from..to {
        assert!(shard.lock(SESSION, &format!("held-{index}"), &format!("lock-{index:06}")).fencing_token().is_some());
    }
}

/// The same commands of a connection, which names the session by its number.
fn numbered(shard: &Shard, seq: u64, request: SessionRequest) -> Command {
    let session = shard.core.sessions().next().expect("it is open");
    let (account, session) = (namespace().account, session.number);
    let message = MessageSeq { epoch: session, seq };
    Command::Locks(LocksCommand::Session(SessionCommand { account, session, message, request }))
}

fn session_acquire(name: &str, request_id: &str) -> SessionRequest {
    SessionRequest::Acquire(SessionAcquire {
        holder: None,
        claims: vec![Claim { path: Path::flat(name), mode: Mode::Write }],
        transition_ms: 0,
        wait: Wait::Unlimited,
        allow_upgrade: false,
        request_id: request_id.to_owned(),
    })
}

/// The commands of so many pairs, encoded.
fn pairs(shard: &Shard, by_number: bool, first: u64, number: u64) -> Vec<Vec<u8>> {
    let commands = (first..first + number).flat_map(|pair| {
        let (name, request_id) = (format!("mine-{:04}", pair % 5_000), format!("r{pair}"));
        if by_number {
            let release = SessionRequest::Release { request_id: request_id.clone(), is_known: true };
            let acquire = numbered(shard, 2 * pair + 1, session_acquire(&name, &request_id));
            return [acquire, numbered(shard, 2 * pair + 2, release)];
        }
        [acquire(&name, &request_id, seq(shard, 2 * pair + 1)), release(&request_id, seq(shard, 2 * pair + 2))]
    });
    commands.map(|command| codec::encode(&command)).collect()
}

#[derive(Default)]
struct Times {
    decode: Duration,
    apply: Duration,
    encode: Duration,
    decode_reply: Duration,
}

/// Runs pairs in batches of 32 commands, as an entry has them. Returns bytes of replies.
fn run(shard: &mut Shard, commands: &[Vec<u8>], with_views: bool, times: &mut Times) -> usize {
    let context = EntryContext { now_ms: 1_000, wall_ms: 1_790_000_000_000, rules: Rules::HIGHEST };
    let mut bytes = 0;
    for batch in commands.chunks(32) {
        let start = Instant::now();
        let decoded: Vec<Command> = batch.iter().map(|command| codec::decode(command).expect("it is one")).collect();
        times.decode += start.elapsed();
        let start = Instant::now();
        shard.core.advance(&context);
        let replies: Vec<Reply> = decoded
            .iter()
            .map(|command| match with_views {
                true => shard.core.apply(&context, command),
                false => shard.core.apply_without_views(&context, command),
            })
            .collect();
        drop(decoded);
        times.apply += start.elapsed();
        let start = Instant::now();
        let replies: Vec<Vec<u8>> = replies.iter().map(codec::encode).collect();
        times.encode += start.elapsed();
        bytes += replies.iter().map(Vec::len).sum::<usize>();
        let start = Instant::now();
        let replies: Vec<Reply> = replies.iter().map(|reply| codec::decode(reply).expect("it is one")).collect();
        times.decode_reply += start.elapsed();
        assert!(replies.iter().all(|reply| reply.outcome.is_ok()));
    }
    bytes
}

#[test]
#[ignore = "prints figures"]
fn what_a_pair_of_a_session_takes() {
    let _alone = exclusive();
    const PAIRS: u64 = 100_000;
    for (by_number, with_views) in [(false, true), (false, false), (true, true), (true, false)] {
        let mut shard = shard_with(10_000);
        let warm_up = pairs(&shard, by_number, 0, 10_000);
        run(&mut shard, &warm_up, with_views, &mut Times::default());
        let commands = pairs(&shard, by_number, 10_000, PAIRS);
        let bytes = commands.iter().map(Vec::len).sum::<usize>() as f64 / PAIRS as f64;
        let mut best: Option<Times> = None;
        let mut replies = 0;
        for part in commands.chunks(20_000) {
            let mut times = Times::default();
            replies += run(&mut shard, part, with_views, &mut times);
            if best.as_ref().is_none_or(|best| times.apply < best.apply) {
                best = Some(times);
            }
        }
        let Times { decode, apply, encode, decode_reply } = best.expect("there are some");
        let each = |time: Duration| time.as_nanos() as f64 / 10_000.0;
        println!(
            "by number {by_number}, views {with_views}: decode {:.0}, apply {:.0}, encode reply {:.0}, decode reply {:.0} ns a pair; \
             commands {bytes:.1} bytes, replies {:.1} bytes a pair",
            each(decode),
            each(apply),
            each(encode),
            each(decode_reply),
            replies as f64 / PAIRS as f64
        );
    }
}

#[test]
#[ignore = "prints figures"]
fn what_many_holds_of_a_session_take() {
    let _alone = exclusive();
    for number in [100_000, 1_000_000] {
        let mut shard = Shard::new();
        let region = Region::new(ALLOCATOR);
        shard.open_session(SESSION);
        add_holds(&mut shard, 0, number);
        let change = region.change();
        let bytes = change.bytes_allocated as i64 - change.bytes_deallocated as i64;
        println!("{number} holds of a session, by request: {} bytes each", bytes / number as i64);
        let mut shard = Shard::new();
        let region = Region::new(ALLOCATOR);
        (0..number).for_each(|index| shard.hold(&format!("process-{index:06}"), &[&format!("lock-{index:06}")]));
        let change = region.change();
        let bytes = change.bytes_allocated as i64 - change.bytes_deallocated as i64;
        println!("{number} holds of processes: {} bytes each", bytes / number as i64);
    }
}
