use std::future::pending;

use super::*;

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

/// Acquires all available permits for one account.
async fn fill(queue: &Arc<FairQueue>, account: AccountId) -> Vec<Permit> {
    let limit = queue.state.lock().concurrency.limit();
    let mut taken = Vec::new();
    while taken.len() < limit {
        taken.push(queue.acquire(account, Priority::Normal, deadline()).await.unwrap());
    }
    taken
}

/// Starts a call and returns when it is queued.
async fn spawn_queued(
    queue: &Arc<FairQueue>,
    account: u64,
    urgency: Priority,
) -> tokio::task::JoinHandle<ApiResult<Permit>> {
    let before = queued(queue);
    let of_task = Arc::clone(queue);
    let task = tokio::spawn(async move { of_task.acquire(AccountId(account), urgency, deadline()).await });
    while queued(queue) == before {
        tokio::task::yield_now().await;
    }
    task
}

/// Advances the paused time.
async fn wait_for(time: Duration) {
    tokio::time::sleep(time).await;
}

fn queued(queue: &FairQueue) -> usize {
    queue.state.lock().queues.values().map(|account_queue| account_queue.high.len() + account_queue.normal.len()).sum()
}

#[tokio::test(start_paused = true)]
async fn accounts_take_turns_however_many_of_one_wait() {
    let queue = Arc::<FairQueue>::default();
    let mut taken = fill(&queue, AccountId(1)).await;
    let mut loud = Vec::new();
    for _ in 0..100 {
        loud.push(spawn_queued(&queue, 1, Priority::Normal).await);
    }
    let quiet = spawn_queued(&queue, 2, Priority::Normal).await;
    taken.truncate(taken.len() - 2);
    assert_eq!(quiet.await.unwrap().unwrap().account, AccountId(2), "its first call is the second at most");
}

#[tokio::test(start_paused = true)]
async fn what_ends_or_keeps_a_hold_goes_first_and_is_not_refused() {
    let queue = Arc::<FairQueue>::default();
    let mut taken = fill(&queue, AccountId(1)).await;
    let usual = spawn_queued(&queue, 1, Priority::Normal).await;
    let urgent = spawn_queued(&queue, 1, Priority::High).await;
    taken.pop();
    let first = urgent.await.unwrap().unwrap();
    assert!(!usual.is_finished());
    let late = spawn_queued(&queue, 1, Priority::High).await;
    // The normal call is rejected after a second, without effect.
    assert_eq!(usual.await.unwrap().err().unwrap().code, Code::Unavailable);
    assert!(!late.is_finished());
    // Calls this slow leave capacity for fewer concurrent ones, so others must end as well.
    drop((first, taken));
    late.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_queue_has_an_end() {
    let queue = Arc::<FairQueue>::default();
    let _taken = fill(&queue, AccountId(1)).await;
    let given_up: Vec<_> = {
        let mut state = queue.state.lock();
        (0..MAX_QUEUED_CALLS).map(|_| state.enqueue(AccountId(1), Priority::Normal).unwrap()).collect()
    };
    let refused = queue.acquire(AccountId(1), Priority::Normal, deadline()).await.err().unwrap();
    assert_eq!((refused.code, refused.retry_after_seconds()), (Code::Unavailable, Some(1)));
    drop(given_up);
    let _waits = spawn_queued(&queue, 1, Priority::Normal).await;
    assert_eq!(queued(&queue), 1, "those that gave up take no room");
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_leaves_its_turn_to_the_next() {
    let queue = Arc::<FairQueue>::default();
    let mut taken = fill(&queue, AccountId(1)).await;
    let leaves = spawn_queued(&queue, 1, Priority::Normal).await;
    let stays = spawn_queued(&queue, 1, Priority::Normal).await;
    leaves.abort();
    assert!(leaves.await.err().is_some_and(|error| error.is_cancelled()));
    taken.pop();
    stays.await.unwrap().unwrap();
    drop(taken);
    let state = queue.state.lock();
    assert_eq!((state.in_flight, state.queues[&AccountId(1)].in_flight), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_takes_long_gives_its_turn_back() {
    let queue = Arc::<FairQueue>::default();
    let permit = queue.acquire(AccountId(1), Priority::Normal, deadline()).await.unwrap();
    let stuck = tokio::spawn(FairQueue::run(permit, true, None, pending::<ApiResult<()>>()));
    wait_for(MAX_PERMIT_TIME * 2).await;
    assert_eq!(queue.state.lock().in_flight, 0);
    assert!(!stuck.is_finished());
    stuck.abort();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_at_the_shard_gives_its_turn_back_at_once() {
    let queue = Arc::<FairQueue>::default();
    let mut taken = fill(&queue, AccountId(1)).await;
    let next = spawn_queued(&queue, 2, Priority::Patient).await;
    let (permit, deferred) = (taken.pop().unwrap(), CancellationToken::new());
    let is_deferred = deferred.clone();
    let waits = tokio::spawn(FairQueue::run(permit, true, Some(deferred), pending::<ApiResult<()>>()));
    is_deferred.cancel();
    let began = Instant::now();
    next.await.unwrap().unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(!waits.is_finished());
    waits.abort();
}

#[tokio::test(start_paused = true)]
async fn who_is_to_wait_anyway_waits_for_its_turn_as_long_as_it_likes() {
    let queue = Arc::<FairQueue>::default();
    let taken = fill(&queue, AccountId(1)).await;
    let patient = spawn_queued(&queue, 1, Priority::Patient).await;
    wait_for(MAX_WAIT * 2).await;
    assert!(!patient.is_finished());
    drop(taken);
    patient.await.unwrap().unwrap();
    let enqueue = || queue.state.lock().enqueue(AccountId(2), Priority::Patient);
    let queued: Vec<_> = (0..MAX_PATIENT).map_while(|_| enqueue()).collect();
    assert_eq!(queued.len(), MAX_PATIENT);
    assert!(queue.state.lock().enqueue(AccountId(2), Priority::Patient).is_none());
}

#[tokio::test(start_paused = true)]
async fn heavy_work_is_done_one_at_a_time_and_accounts_take_turns() {
    let queue = Arc::new(FairQueue::one_at_a_time());
    let first = queue.acquire(AccountId(1), Priority::High, deadline()).await.unwrap();
    let of_same = spawn_queued(&queue, 1, Priority::High).await;
    let also_of_same = spawn_queued(&queue, 1, Priority::High).await;
    let of_other = spawn_queued(&queue, 2, Priority::High).await;
    // Slow and quick ones alike: the limit does not adapt.
    wait_for(Duration::from_millis(400)).await;
    drop(first);
    let second = of_same.await.unwrap().unwrap();
    assert!(!of_other.is_finished() && !also_of_same.is_finished());
    drop(second);
    let third = of_other.await.unwrap().unwrap();
    assert!(!also_of_same.is_finished());
    drop(third);
    drop(also_of_same.await.unwrap().unwrap());
}
