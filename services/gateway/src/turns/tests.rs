use std::future::pending;

use super::*;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

/// Takes all turns that there are for one account.
async fn fill(turns: &Arc<Turns>, account: AccountId) -> Vec<Turn> {
    let limit = turns.state.lock().pace.limit();
    let mut taken = Vec::new();
    while taken.len() < limit {
        taken.push(turns.take(account, Urgency::Usual, soon()).await.unwrap());
    }
    taken
}

/// A call that waits; it is in the queue when this returns.
async fn waiting(turns: &Arc<Turns>, account: u64, urgency: Urgency) -> tokio::task::JoinHandle<ApiResult<Turn>> {
    let before = queued(turns);
    let of_task = Arc::clone(turns);
    let task = tokio::spawn(async move { of_task.take(AccountId(account), urgency, soon()).await });
    while queued(turns) == before {
        tokio::task::yield_now().await;
    }
    task
}

/// Time that passes at once.
async fn wait_for(time: Duration) {
    tokio::time::sleep(time).await;
}

fn queued(turns: &Turns) -> usize {
    turns.state.lock().lanes.values().map(|lane| lane.urgent.len() + lane.usual.len()).sum()
}

#[tokio::test(start_paused = true)]
async fn accounts_take_turns_however_many_of_one_wait() {
    let turns = Arc::<Turns>::default();
    let mut taken = fill(&turns, AccountId(1)).await;
    let mut loud = Vec::new();
    for _ in 0..100 {
        loud.push(waiting(&turns, 1, Urgency::Usual).await);
    }
    let quiet = waiting(&turns, 2, Urgency::Usual).await;
    taken.truncate(taken.len() - 2);
    assert_eq!(quiet.await.unwrap().unwrap().account, AccountId(2), "its first call is the second at most");
}

#[tokio::test(start_paused = true)]
async fn what_ends_or_keeps_a_hold_goes_first_and_is_not_refused() {
    let turns = Arc::<Turns>::default();
    let mut taken = fill(&turns, AccountId(1)).await;
    let usual = waiting(&turns, 1, Urgency::Usual).await;
    let urgent = waiting(&turns, 1, Urgency::Urgent).await;
    taken.pop();
    let first = urgent.await.unwrap().unwrap();
    assert!(!usual.is_finished());
    let late = waiting(&turns, 1, Urgency::Urgent).await;
    // The usual one is refused after a second, with nothing done.
    assert_eq!(usual.await.unwrap().err().unwrap().code, Code::Unavailable);
    assert!(!late.is_finished());
    // Calls that took so long leave room for fewer at a time, so that others have to end as well.
    drop((first, taken));
    late.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_queue_has_an_end() {
    let turns = Arc::<Turns>::default();
    let _taken = fill(&turns, AccountId(1)).await;
    let given_up: Vec<_> = {
        let mut state = turns.state.lock();
        (0..MAX_WAITING).map(|_| state.queue(AccountId(1), Urgency::Usual).unwrap()).collect()
    };
    let refused = turns.take(AccountId(1), Urgency::Usual, soon()).await.err().unwrap();
    assert_eq!((refused.code, refused.retry_after_seconds()), (Code::Unavailable, Some(1)));
    drop(given_up);
    let _waits = waiting(&turns, 1, Urgency::Usual).await;
    assert_eq!(queued(&turns), 1, "those that gave up take no room");
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_leaves_its_turn_to_the_next() {
    let turns = Arc::<Turns>::default();
    let mut taken = fill(&turns, AccountId(1)).await;
    let leaves = waiting(&turns, 1, Urgency::Usual).await;
    let stays = waiting(&turns, 1, Urgency::Usual).await;
    leaves.abort();
    assert!(leaves.await.err().is_some_and(|error| error.is_cancelled()));
    taken.pop();
    stays.await.unwrap().unwrap();
    drop(taken);
    let state = turns.state.lock();
    assert_eq!((state.under_way, state.lanes[&AccountId(1)].under_way), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_takes_long_gives_its_turn_back() {
    let turns = Arc::<Turns>::default();
    let turn = turns.take(AccountId(1), Urgency::Usual, soon()).await.unwrap();
    let stuck = tokio::spawn(Turns::during(turn, true, None, pending::<ApiResult<()>>()));
    wait_for(KEEPS_FOR * 2).await;
    assert_eq!(turns.state.lock().under_way, 0);
    assert!(!stuck.is_finished());
    stuck.abort();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_at_the_shard_gives_its_turn_back_at_once() {
    let turns = Arc::<Turns>::default();
    let mut taken = fill(&turns, AccountId(1)).await;
    let next = waiting(&turns, 2, Urgency::Patient).await;
    let (turn, deferred) = (taken.pop().unwrap(), CancellationToken::new());
    let is_deferred = deferred.clone();
    let waits = tokio::spawn(Turns::during(turn, true, Some(deferred), pending::<ApiResult<()>>()));
    is_deferred.cancel();
    let began = Instant::now();
    next.await.unwrap().unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(!waits.is_finished());
    waits.abort();
}

#[tokio::test(start_paused = true)]
async fn who_is_to_wait_anyway_waits_for_its_turn_as_long_as_it_likes() {
    let turns = Arc::<Turns>::default();
    let taken = fill(&turns, AccountId(1)).await;
    let patient = waiting(&turns, 1, Urgency::Patient).await;
    wait_for(PATIENCE * 2).await;
    assert!(!patient.is_finished());
    drop(taken);
    patient.await.unwrap().unwrap();
    let queue = || turns.state.lock().queue(AccountId(2), Urgency::Patient);
    let queued: Vec<_> = (0..MAX_PATIENT).map_while(|_| queue()).collect();
    assert_eq!(queued.len(), MAX_PATIENT);
    assert!(turns.state.lock().queue(AccountId(2), Urgency::Patient).is_none());
}
