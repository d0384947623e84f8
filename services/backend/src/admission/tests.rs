use std::future::pending;

use holdfast_api::Code;
use holdfast_types::AccountStatus;

use super::concurrency_limit::MAX_LIGHT_CALLS;
use super::*;

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn sharer(account: u64) -> Sharer {
    Sharer::Account(AccountId(account))
}

fn request(account: u64, priority: Priority) -> AdmissionRequest {
    AdmissionRequest { share: Share::of(sharer(account)), priority, bytes: 0 }
}

async fn permit(admission: &Arc<Admission>, account: u64) -> Permit {
    admission.acquire(request(account, Priority::Normal), deadline()).await.unwrap()
}

/// Acquires all available permits for one account.
async fn fill(admission: &Arc<Admission>, account: u64) -> Vec<Permit> {
    let limit = admission.state.lock().concurrency.limit();
    let mut taken = Vec::new();
    while taken.len() < limit {
        taken.push(permit(admission, account).await);
    }
    taken
}

/// Starts a call and returns when it is queued.
async fn spawn_queued(
    admission: &Arc<Admission>,
    account: u64,
    priority: Priority,
) -> tokio::task::JoinHandle<ApiResult<Permit>> {
    let before = queued(admission);
    let of_task = Arc::clone(admission);
    let task = tokio::spawn(async move { of_task.acquire(request(account, priority), deadline()).await });
    while queued(admission) == before {
        tokio::task::yield_now().await;
    }
    task
}

/// Queues calls that nobody waits for yet, until one is refused.
fn queue_until_refused(admission: &Arc<Admission>, request: AdmissionRequest) -> (Vec<QueuedCall>, ApiError) {
    let mut calls = Vec::new();
    loop {
        let admitted = admission.state.lock().admit(admission, request, Instant::now());
        match admitted {
            Ok(Admitted::Queued(receiver)) => {
                calls.push(QueuedCall { admission: Arc::clone(admission), request, receiver, is_admitted: false });
            }
            Ok(Admitted::AtOnce(_)) => panic!("all permits are taken"),
            Err(refused) => return (calls, refused.report()),
        }
    }
}

fn limit_of(refused: &ApiError) -> &str {
    refused.ids.iter().find(|(name, _)| *name == "limit").map_or("", |(_, limit)| limit)
}

/// Advances the paused time.
async fn wait_for(time: Duration) {
    tokio::time::sleep(time).await;
}

fn queued(admission: &Admission) -> usize {
    admission.state.lock().queued()
}

#[tokio::test(start_paused = true)]
async fn accounts_take_turns_however_many_of_one_wait() {
    let admission = Arc::<Admission>::default();
    let mut taken = fill(&admission, 1).await;
    let mut loud = Vec::new();
    for _ in 0..100 {
        loud.push(spawn_queued(&admission, 1, Priority::Normal).await);
    }
    let quiet = spawn_queued(&admission, 2, Priority::Normal).await;
    taken.truncate(taken.len() - 2);
    let first = quiet.await.unwrap().unwrap();
    assert_eq!(first.request.share.sharer, sharer(2), "its first call is the second at most");
}

#[tokio::test(start_paused = true)]
async fn what_ends_or_keeps_a_hold_goes_first_and_is_not_refused() {
    let admission = Arc::<Admission>::default();
    let mut taken = fill(&admission, 1).await;
    let usual = spawn_queued(&admission, 1, Priority::Normal).await;
    let urgent = spawn_queued(&admission, 1, Priority::High).await;
    taken.pop();
    let first = urgent.await.unwrap().unwrap();
    assert!(!usual.is_finished());
    let late = spawn_queued(&admission, 1, Priority::High).await;
    // The normal call is rejected after a second, without effect.
    let refused = usual.await.unwrap().err().unwrap();
    assert_eq!((refused.code, limit_of(&refused)), (Code::Unavailable, "queued_ms"));
    assert!(!late.is_finished());
    // Calls this slow leave capacity for fewer concurrent ones, so others must end as well.
    drop((first, taken));
    late.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_queue_has_an_end_and_urgent_calls_and_waits_have_their_own() {
    let admission = Arc::<Admission>::default();
    let _taken = fill(&admission, 1).await;
    let any_open = Share { max_open_calls: u64::MAX, ..Share::of(sharer(1)) };
    let normal = AdmissionRequest { share: any_open, ..request(1, Priority::Normal) };
    let (calls, refused) = queue_until_refused(&admission, normal);
    assert_eq!((calls.len() as u64, limit_of(&refused)), (limit::QUEUED_CALLS.default_value(), "queued_calls"));
    assert_eq!((refused.code, refused.retry_after_seconds()), (Code::Unavailable, Some(1)));
    let (waits, refused) = queue_until_refused(&admission, request(1, Priority::Patient));
    assert_eq!((waits.len() as u64, limit_of(&refused)), (limit::QUEUED_WAITS.default_value(), "queued_waits"));
    let (urgent, refused) = queue_until_refused(&admission, request(1, Priority::High));
    assert_eq!((urgent.len() as u64, limit_of(&refused)), (limit::MAX_URGENT_CALLS, "urgent_calls"));
    assert_eq!(refused.code, Code::Unavailable);
    let used = [(&limit::URGENT_CALLS, 16_384), (&limit::QUEUED_CALLS, 4_096), (&limit::QUEUED_WAITS, 16_384)];
    assert_eq!(admission.used(sharer(1))[1..], used);
    drop((calls, waits, urgent));
    let _waits = spawn_queued(&admission, 1, Priority::Normal).await;
    assert_eq!(queued(&admission), 1, "those that gave up take no room");
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_of_one_account_refuses_nothing_of_another() {
    let admission = Arc::<Admission>::default();
    let _taken = fill(&admission, 1).await;
    let mut calls = Vec::new();
    for priority in [Priority::Normal, Priority::Patient, Priority::High] {
        let (full, _) = queue_until_refused(&admission, request(1, priority));
        let (other, refused) = queue_until_refused(&admission, request(2, priority));
        assert!(other.len() >= full.len(), "{}: {} of {}", limit_of(&refused), other.len(), full.len());
        calls.extend([full, other]);
    }
}

#[tokio::test(start_paused = true)]
async fn queued_waits_leave_room_for_normal_calls() {
    let admission = Arc::<Admission>::default();
    let mut taken = fill(&admission, 1).await;
    let (waits, _) = queue_until_refused(&admission, request(1, Priority::Patient));
    let any_open = Share { max_open_calls: u64::MAX, ..Share::of(sharer(1)) };
    let normal = AdmissionRequest { share: any_open, ..request(1, Priority::Normal) };
    for _ in 0..2 {
        let (calls, refused) = queue_until_refused(&admission, normal);
        assert_eq!((calls.len() as u64, limit_of(&refused)), (limit::QUEUED_CALLS.default_value(), "queued_calls"));
    }
    let (calls, _) = queue_until_refused(&admission, normal);
    // Whichever way they leave the queue, they no longer count.
    taken.clear();
    drop((waits, calls));
    drop(permit(&admission, 1).await);
    assert_eq!(admission.state.lock().sharers[&sharer(1)].queued_normal, 0);
}

#[tokio::test(start_paused = true)]
async fn large_urgent_calls_are_bounded_by_their_bytes() {
    let admission = Arc::<Admission>::default();
    let _taken = fill(&admission, 1).await;
    let large = AdmissionRequest { bytes: 64 << 10, ..request(1, Priority::High) };
    let (urgent, refused) = queue_until_refused(&admission, large);
    assert_eq!((urgent.len(), limit_of(&refused)), (256, "urgent_calls"));
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_leaves_its_turn_to_the_next() {
    let admission = Arc::<Admission>::default();
    let mut taken = fill(&admission, 1).await;
    let leaves = spawn_queued(&admission, 1, Priority::Normal).await;
    let stays = spawn_queued(&admission, 1, Priority::Normal).await;
    leaves.abort();
    assert!(leaves.await.err().is_some_and(|error| error.is_cancelled()));
    taken.pop();
    stays.await.unwrap().unwrap();
    drop(taken);
    let state = admission.state.lock();
    let of_account = &state.sharers[&sharer(1)];
    assert_eq!((state.in_flight, of_account.in_flight, of_account.open), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_arrives_too_late_is_released() {
    let admission = Arc::<Admission>::default();
    let mut taken = fill(&admission, 1).await;
    let (mut calls, _) = queue_until_refused(&admission, request(1, Priority::Normal));
    calls.truncate(2);
    taken.pop();
    // The first has its permit, and nobody takes it.
    calls.remove(0);
    let next = calls.remove(0).admitted(deadline()).await.unwrap();
    drop((next, taken));
    assert_eq!((queued(&admission), admission.state.lock().sharers[&sharer(1)].open), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_takes_long_gives_its_turn_back_and_stays_open() {
    let admission = Arc::<Admission>::default();
    let share = Share { max_open_calls: 2, ..Share::of(sharer(1)) };
    let two_open = AdmissionRequest { share, ..request(1, Priority::Normal) };
    let mut stuck = Vec::new();
    for _ in 0..2 {
        let permit = admission.acquire(two_open, deadline()).await.unwrap();
        stuck.push(tokio::spawn(Admission::run(permit, true, None, pending::<ApiResult<()>>())));
    }
    wait_for(MAX_PERMIT_TIME * 2).await;
    assert_eq!(admission.state.lock().in_flight, 0);
    assert!(stuck.iter().all(|call| !call.is_finished()));
    let refused = admission.acquire(two_open, deadline()).await.err().unwrap();
    assert_eq!((refused.code, limit_of(&refused)), (Code::RateLimited, "max_open_calls"));
    // Releases go on, and so do others.
    drop(admission.acquire(AdmissionRequest { share, ..request(1, Priority::High) }, deadline()).await.unwrap());
    drop(permit(&admission, 2).await);
    let ended = stuck.pop().unwrap();
    ended.abort();
    assert!(ended.await.is_err());
    admission.acquire(two_open, deadline()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_at_the_shard_gives_its_turn_back_at_once() {
    let admission = Arc::<Admission>::default();
    let mut taken = fill(&admission, 1).await;
    let next = spawn_queued(&admission, 2, Priority::Patient).await;
    let (permit, deferred) = (taken.pop().unwrap(), CancellationToken::new());
    let is_deferred = deferred.clone();
    let waits = tokio::spawn(Admission::run(permit, true, Some(deferred), pending::<ApiResult<()>>()));
    is_deferred.cancel();
    let began = Instant::now();
    next.await.unwrap().unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(!waits.is_finished());
    waits.abort();
}

#[tokio::test(start_paused = true)]
async fn who_is_to_wait_anyway_waits_for_its_turn_as_long_as_it_likes() {
    let admission = Arc::<Admission>::default();
    let taken = fill(&admission, 1).await;
    let patient = spawn_queued(&admission, 1, Priority::Patient).await;
    wait_for(MAX_WAIT * 2).await;
    assert!(!patient.is_finished());
    drop(taken);
    patient.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn any_number_of_accounts_at_their_share_holds_up_no_other() {
    const ACCOUNTS: u64 = 600;
    let state = State::new(ConcurrencyLimit::with_share(10_000, 1));
    let admission = Arc::new(Admission { state: Mutex::new(state), max_permit_time: MAX_PERMIT_TIME });
    let mut taken = Vec::new();
    for account in 0..ACCOUNTS {
        taken.push(permit(&admission, account).await);
        // A light account would not wait.
        let mut state = admission.state.lock();
        state.sharers.get_mut(&sharer(account)).unwrap().record_load(10 * MAX_LIGHT_CALLS);
    }
    wait_for(Duration::from_millis(200)).await;
    let mut waiting = Vec::new();
    for account in 0..ACCOUNTS {
        waiting.push(spawn_queued(&admission, account, Priority::Normal).await);
    }
    drop(taken.pop());
    waiting.pop().unwrap().await.unwrap().unwrap();
    assert!(waiting.iter().all(|call| !call.is_finished()));
}

#[tokio::test(start_paused = true)]
async fn heavy_work_is_done_one_at_a_time_and_accounts_take_turns() {
    let admission = Arc::new(Admission::fixed(1, MAX_PERMIT_TIME));
    let first = admission.acquire(request(1, Priority::High), deadline()).await.unwrap();
    let of_same = spawn_queued(&admission, 1, Priority::High).await;
    let also_of_same = spawn_queued(&admission, 1, Priority::High).await;
    let of_other = spawn_queued(&admission, 2, Priority::High).await;
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

#[test]
fn the_limits_of_an_account_are_its_own() {
    let account = Account {
        id: AccountId(1),
        email: "a@b".to_owned(),
        full_name: "A".to_owned(),
        max_number_of_namespaces: 1,
        limits: Limits { max_open_calls: 7, max_held_calls: 8, max_held_questions: 9, ..Limits::default() },
        status: AccountStatus::Active,
        created_at_ms: 0,
        updated_at_ms: 0,
        revision: 1,
    };
    let Share { sharer: of, max_open_calls, max_held_calls, max_held_questions } = Share::from(&account);
    assert_eq!((of, max_open_calls, max_held_calls, max_held_questions), (sharer(1), 7, 8, 9));
}
