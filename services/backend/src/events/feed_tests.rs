use holdfast_types::{EventKind, Kind, Kinds, Mode, Owner};

use super::*;

fn event(revision: Revision, path: &str) -> Event {
    Event {
        revision,
        at_ms: 0,
        kind: EventKind::Acquired,
        owner: Owner::Process("p".into()),
        process_id: "p".into(),
        fencing_token: None,
        claims: vec![Claim { path: Path::flat(path), mode: Mode::Write }],
    }
}

fn update(items: Vec<Event>, next_revision: Revision) -> Update<Event> {
    Update { next_revision, items }
}

/// The revisions of a page, and where the next one begins.
fn page(latest: &LatestEvents, from: Revision, path: &str, limit: usize) -> Option<(Vec<Revision>, Revision)> {
    let prefix = if path.is_empty() { Path::default() } else { Path::flat(path) };
    let (events, next) = latest.page(from, &Selection { prefix, kinds: Kinds::LOCKS }, limit).unwrap()?;
    Some((events.iter().map(|event| event.revision).collect(), next))
}

fn latest() -> LatestEvents {
    LatestEvents::new(FeedMemory::default(), AccountId(1))
}

#[tokio::test]
async fn each_watcher_reads_what_concerns_it_from_its_own_position() {
    let mut latest = latest();
    assert_eq!(page(&latest, 5, "", 10), Some((vec![], 5)), "nothing is known yet");
    latest.push(update(vec![], 5));
    assert_eq!(page(&latest, 4, "", 10), None, "it is behind");
    latest.push(update(vec![event(5, "a"), event(7, "b"), event(9, "a")], 12));
    assert_eq!(page(&latest, 5, "", 10), Some((vec![5, 7, 9], 12)));
    assert_eq!(page(&latest, 6, "a", 10), Some((vec![9], 12)));
    assert_eq!(page(&latest, 5, "a", 1), Some((vec![5], 9)), "the next page begins with what did not fit");
    assert_eq!(page(&latest, 5, "c", 10), Some((vec![], 12)));
    assert_eq!(page(&latest, 20, "", 10), Some((vec![], 20)), "a query was faster than the subscription");
}

#[tokio::test]
async fn a_watcher_reads_events_of_its_kinds_only() {
    let mut latest = latest();
    let latch = Event { kind: EventKind::LatchCompleted, ..event(2, "a") };
    latest.push(update(vec![event(1, "a"), latch], 3));
    assert_eq!(page(&latest, 1, "", 10), Some((vec![1], 3)), "locks, unless it asks for others");
    let kinds = Kinds::from_iter([Kind::Latch]);
    let (events, next) = latest.page(1, &Selection { prefix: Path::flat("a"), kinds }, 10).unwrap().unwrap();
    assert_eq!((events.len(), events[0].revision, next), (1, 2, 3));
}

#[tokio::test]
async fn old_events_make_room_and_are_gone_after_a_calm_time() {
    let mut latest = latest();
    latest.push(update(vec![], 1));
    let memory = latest.memory.clone();
    let size = event_bytes(&event(1, "a"));
    let many = MAX_BYTES / size + 100;
    for revision in 1..=many as u64 {
        latest.push(update(vec![event(revision, "a")], revision + 1));
    }
    assert!(latest.bytes <= MAX_BYTES && latest.bytes + size > MAX_BYTES);
    assert_eq!(memory.total(), latest.bytes);
    let start = many as u64 - latest.events.len() as u64 + 1;
    assert_eq!(page(&latest, start - 1, "", 1), None);
    assert_eq!(page(&latest, start, "", 1), Some((vec![start], start + 1)));
    // A page remains whole, whatever its size. Watchers read it in parts.
    let (from, to) = (many as u64 + 1, 3 * many as u64);
    latest.push(update((from..=to).map(|revision| event(revision, "b")).collect(), to + 1));
    let (mut at, mut read) = (from, 0);
    while let Some((events, next)) = page(&latest, at, "", usize::MAX).filter(|(events, _)| !events.is_empty()) {
        assert!(events.len() * size <= MAX_PAGE_BYTES && (next > to || (events.len() + 1) * size > MAX_PAGE_BYTES));
        (at, read) = (next, read + events.len());
    }
    assert_eq!(read, latest.events.len());
    latest.push(update(vec![], to + 1));
    assert_eq!((latest.bytes, page(&latest, to + 1, "", 1)), (0, Some((vec![], to + 1))));
    drop(latest);
    assert_eq!(memory.total(), 0);
}

#[tokio::test]
async fn with_many_namespaces_of_an_account_only_their_latest_pages_remain() {
    let mut latest = latest();
    let mut of_other_account = LatestEvents::new(latest.memory.clone(), AccountId(2));
    // Another namespace of the account.
    latest.memory.resize(AccountId(1), 20 << 20, 0);
    for latest in [&mut latest, &mut of_other_account] {
        latest.push(update(vec![event(1, "a")], 2));
        latest.push(update(vec![event(2, "a"), event(3, "a")], 4));
    }
    assert_eq!((page(&latest, 1, "", 10), page(&latest, 2, "", 10)), (None, Some((vec![2, 3], 4))));
    assert_eq!(page(&of_other_account, 1, "", 10), Some((vec![1, 2, 3], 4)), "another account has its share");
}

#[tokio::test]
async fn a_feed_that_missed_events_begins_anew() {
    let mut latest = latest();
    latest.push(update(vec![], 1));
    latest.push(update(vec![event(1, "a")], 2));
    latest.reset();
    assert_eq!(page(&latest, 2, "", 10), Some((vec![], 2)), "watchers wait for the new beginning");
    latest.push(update(vec![], 50));
    assert_eq!((page(&latest, 2, "", 10), page(&latest, 50, "", 10)), (None, Some((vec![], 50))));
}
