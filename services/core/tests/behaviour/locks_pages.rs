//! Pages end early rather than grow past their bytes or visit very many rows.

use holdfast_core::shard::PendingReply;
use holdfast_core::{
    Acquire, AdoptedWait, Claim, Kinds, LocksCommand, MAX_PAGE_BYTES, Metadata, OpenSession, Path, Query, Release,
    ReleaseTarget, Response, WaitId, WaitRecord, codec,
};

use crate::support::{Shard, orders, process, request_id};
use crate::wait_requests::{open_command, read, try_request, wait_request, write};

/// Rows of which three fill a page, and one that is longer than a page.
const ROWS: [usize; 5] = [100_000, 100_000, 100_000, 300_000, 10];

fn metadata(bytes: usize) -> Metadata {
    Metadata::from([("note".to_owned(), "x".repeat(bytes))])
}

/// How many rows each page has, page by page; `page` answers the rows, whether more follow, and where to go on.
fn pages<A>(mut page: impl FnMut(Option<A>) -> (Vec<Vec<u8>>, bool, Option<A>)) -> Vec<usize> {
    let (mut sizes, mut after) = (vec![], None);
    loop {
        let (rows, more, next) = page(after);
        let bytes: usize = rows.iter().map(Vec::len).sum();
        assert!(rows.len() == 1 || bytes <= MAX_PAGE_BYTES, "{} rows of {bytes} bytes", rows.len());
        sizes.push(rows.len());
        if !more {
            return sizes;
        }
        after = next;
    }
}

fn encoded<T: serde::Serialize>(rows: &[T]) -> Vec<Vec<u8>> {
    rows.iter().map(codec::encode).collect()
}

#[test]
fn pages_of_locks() {
    let mut shard = Shard::new();
    for (index, bytes) in ROWS.into_iter().enumerate() {
        shard.granted(Acquire { metadata: metadata(bytes), ..try_request("p", &[write(&index.to_string())]) });
    }
    let sizes = pages(|after: Option<Path>| {
        let query = Query::Locks { namespace: orders(), prefix: Path::default(), after, limit: 100 };
        let Ok(Response::Locks { locks, next }) = shard.query(&query) else { panic!("not locks") };
        (encoded(&locks), next.is_some(), next)
    });
    assert_eq!(sizes, [2, 1, 1, 1]);
}

/// Paths that one page may visit.
const VISITS: usize = 4_096;

#[test]
fn a_page_of_locks_ends_after_so_many_paths_that_are_only_waited_for() {
    let mut shard = Shard::new();
    shard.granted(try_request("reader", &[read("")]));
    shard.granted(try_request("last", &[read("z")]));
    for request in 0..=VISITS / 64 {
        let claims: Vec<Claim> = (0..64).map(|claim| write(&format!("w{request}_{claim}"))).collect();
        shard.enqueued(wait_request(&format!("p{request}"), &claims));
    }
    let page = |after: Option<Path>| {
        let query = Query::Locks { namespace: orders(), prefix: Path::default(), after, limit: 2 };
        let Ok(Response::Locks { locks, next }) = shard.query(&query) else { panic!("not locks") };
        (locks.into_iter().map(|lock| lock.path).collect::<Vec<_>>(), next)
    };
    let (first, next) = page(None);
    assert_eq!(first, [Path::default()]);
    assert!(next.as_ref().is_some_and(|next| next.0[0].starts_with('w')), "it goes on at {next:?}");
    assert_eq!(page(next), (vec![Path::flat("z")], None));
}

#[test]
fn a_page_of_locks_ends_after_so_many_holders() {
    let mut shard = Shard::new();
    let names: Vec<String> = (0..300).map(|name| format!("l{name:03}")).collect();
    for reader in 0..17 {
        for some in names.chunks(50) {
            let claims: Vec<Claim> = some.iter().map(|name| read(name)).collect();
            shard.granted(try_request(&format!("r{reader}"), &claims));
        }
    }
    let page = |after: Option<Path>| {
        let query = Query::Locks { namespace: orders(), prefix: Path::default(), after, limit: 1_000 };
        let Ok(Response::Locks { locks, next }) = shard.query(&query) else { panic!("not locks") };
        assert!(locks.iter().all(|lock| (lock.read_lock_holders.len(), lock.holders_total) == (16, 17)));
        (locks.len(), next)
    };
    let (first, next) = page(None);
    assert!((VISITS / 16 - 1..=VISITS / 16).contains(&first), "{first} locks with 16 holders each");
    assert_eq!(page(next), (300 - first, None));
}

#[test]
fn a_page_of_waiting_requests_ends_after_so_many_claims() {
    let mut shard = Shard::new();
    shard.granted(try_request("h", &[write("")]));
    for request in 0..80 {
        let claims: Vec<Claim> = (0..64).map(|claim| write(&format!("w{request}_{claim}"))).collect();
        shard.enqueued(wait_request(&format!("p{request}"), &claims));
    }
    let page = |after: Option<WaitId>| {
        let Ok(Response::Waits { waits, more }) =
            shard.query(&Query::Waits { namespace: orders(), after, limit: 1_000 })
        else {
            panic!("not waits")
        };
        (waits.len(), more, waits.last().map(|wait| wait.wait))
    };
    let (first, more, last) = page(None);
    assert!(more && first == VISITS.div_ceil(65), "{first} requests");
    assert!(matches!(page(last), (rest, false, _) if rest == 80 - first));
}

#[test]
fn what_a_query_took_is_shown_as_it_was_though_the_state_has_changed() {
    let mut shard = Shard::new();
    for index in 0..5 {
        shard.granted(Acquire { metadata: metadata(100), ..try_request("p", &[write(&index.to_string())]) });
    }
    let queries = [
        Query::Lock { namespace: orders(), path: Path::flat("1") },
        Query::Locks { namespace: orders(), prefix: Path::default(), after: None, limit: 3 },
        Query::Locks { namespace: orders(), prefix: Path::default(), after: None, limit: 100 },
    ];
    let before = queries.each_ref().map(|query| shard.core.query(0, query));
    let begun = queries.each_ref().map(|query| shard.core.begin_query(0, query));
    let release = Release { namespace: orders(), owner: process("p"), what: ReleaseTarget::All, message: None };
    shard.run(LocksCommand::Release(release)).unwrap();
    assert_ne!(queries.each_ref().map(|query| shard.core.query(0, query)), before);
    assert_eq!(begun.map(PendingReply::finish), before);
}

#[test]
fn pages_of_sessions() {
    let mut shard = Shard::new();
    for (index, bytes) in ROWS.into_iter().enumerate() {
        let open = OpenSession {
            namespace: orders(),
            session_id: format!("se_{index}"),
            resume: false,
            request_id: request_id(1),
            process_id: "p".into(),
            ttl_ms: 10_000,
            metadata: metadata(bytes),
        };
        shard.run(LocksCommand::OpenSession(open)).unwrap();
    }
    let sizes = pages(|after: Option<String>| {
        let query = Query::Sessions { namespace: orders(), after, limit: 100 };
        let Ok(Response::Sessions { sessions, more }) = shard.query(&query) else { panic!("not sessions") };
        (encoded(&sessions), more, sessions.last().map(|session| session.session_id.clone()))
    });
    assert_eq!(sizes, [2, 1, 1, 1]);
}

/// A claim whose path is so long.
fn long(index: usize, bytes: usize) -> Claim {
    write(&format!("{index}{}", "x".repeat(bytes)))
}

#[test]
fn pages_of_waiting_requests() {
    let mut shard = Shard::new();
    shard.granted(try_request("h", &[write("")]));
    for (index, bytes) in ROWS.into_iter().enumerate() {
        shard.enqueued(wait_request(&format!("p{index}"), &[long(index, bytes)]));
    }
    let sizes = pages(|after: Option<WaitId>| {
        let Ok(Response::Waits { waits, more }) = shard.query(&Query::Waits { namespace: orders(), after, limit: 100 })
        else {
            panic!("not waits")
        };
        (encoded(&waits), more, waits.last().map(|wait| wait.wait))
    });
    assert_eq!(sizes, [2, 1, 1, 1]);
}

#[test]
fn pages_of_events() {
    let mut shard = Shard::new();
    for index in 0..5 {
        shard.granted(try_request("p", &[long(index, 400_000)]));
    }
    let sizes = pages(|from: Option<u64>| {
        let (namespace, prefix) = (orders(), Path::default());
        let query = Query::Events {
            namespace,
            from_revision: Some(from.unwrap_or(1)),
            prefix,
            kinds: Kinds::LOCKS,
            limit: 100,
        };
        let Ok(Response::Events { events, next_revision, more }) = shard.query(&query) else { panic!("not events") };
        (encoded(&events), more, Some(next_revision))
    });
    // Each is longer than what one question looks at.
    assert_eq!(sizes, [1; 5]);
}

#[test]
fn a_new_leader_takes_sessions_and_waits_over_from_a_place_on() {
    let mut shard = Shard::new();
    for index in 0..3 {
        shard.run(LocksCommand::OpenSession(open_command(&format!("se_{index}"), false, index))).unwrap();
    }
    shard.granted(try_request("h", &[write("l")]));
    for attempt in 0..3 {
        shard.enqueued(Acquire { attempt, ..wait_request(&format!("p{attempt}"), &[write("l")]) });
    }
    let times: Vec<_> = shard.core.session_times(None).collect();
    assert!(shard.core.sessions().map(|open| (open.number, open.namespace.account, open.ttl_ms)).eq(times.clone()));
    assert!(times.len() == 3 && shard.core.session_times(Some(times[0].0)).eq(times[1..].iter().copied()));

    let waits = shard.core.waits().filter(|record| record.wait.attempt > 0);
    let waits = waits.map(|WaitRecord { namespace, wait, attempts }| AdoptedWait {
        namespace,
        wait: wait.wait,
        attempts,
        cancel: None,
    });
    let adopted: Vec<_> = shard.core.adopted_waits(None).collect();
    assert!(adopted.iter().flat_map(|(_, waits)| waits.clone()).eq(waits));
    let [(namespace, waits)] = &adopted[..] else { panic!("one namespace: {adopted:?}") };
    assert_eq!(waits.len(), 2, "nobody can attach to the one without an attempt");
    assert_eq!(shard.core.adopted_waits(Some(*namespace)).count(), 0);
}
