//! Which connections give way, how many an account has, and what callers on one connection share.

use super::*;

async fn full_limiter(count: usize) -> (Arc<ConnectionLimiter>, TaskTracker, Vec<ConnectionPermit>) {
    let (room, tasks) = (ConnectionLimiter::new(count, AccountConnections::default()), TaskTracker::new());
    let mut places = Vec::new();
    for _ in 0..count {
        places.push(room.acquire(&tasks).await);
    }
    (room, tasks, places)
}

/// An account may have three connections here.
fn set_owner(activity: &ActivityGuard, account: u64) -> ApiResult<()> {
    let owner = ConnectionOwner::Account(AccountId(account));
    activity.inner.permit.set_owner(owner, 3, AccountBuffers::default())
}

fn evicted_indices(places: &[ConnectionPermit]) -> Vec<usize> {
    let is_leaving = |place: &ConnectionPermit| place.inner.state.eviction.is_cancelled();
    places.iter().enumerate().filter(|(_, place)| is_leaving(place)).map(|(at, _)| at).collect()
}

#[tokio::test(start_paused = true)]
async fn strangers_that_are_idle_give_way_before_those_who_are_known_and_nobody_who_is_busy() {
    let (room, tasks, mut places) = full_limiter(4).await;
    let busy = places[0].start_activity();
    set_owner(&places[1].start_activity(), 1).unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    drop(places[2].start_activity());
    for expected in [vec![3], vec![2, 3], vec![1, 2, 3]] {
        room.evict();
        assert_eq!(evicted_indices(&places), expected);
    }
    room.evict();
    assert_eq!(evicted_indices(&places), [1, 2, 3], "who is busy stays");
    drop(busy);
    places.remove(3);
    room.acquire(&tasks).await;
}

#[tokio::test(start_paused = true)]
async fn strangers_that_are_busy_for_long_give_way_before_those_who_are_known() {
    let (room, _tasks, places) = full_limiter(4).await;
    let mut activities: Vec<ActivityGuard> = places.iter().map(ConnectionPermit::start_activity).collect();
    for known in [0, 2, 3] {
        set_owner(&activities[known], 1).unwrap();
    }
    activities.truncate(2);
    tokio::time::advance(Duration::from_millis(MAX_STRANGER_BUSY_MS - 1)).await;
    room.evict();
    assert_eq!(evicted_indices(&places), [2], "a stranger's call has just begun");
    // A further call does not make the connection new.
    let _further = places[1].start_activity();
    tokio::time::advance(Duration::from_millis(1)).await;
    for expected in [vec![1, 2], vec![1, 2, 3], vec![1, 2, 3]] {
        room.evict();
        assert_eq!(evicted_indices(&places), expected);
    }
}

#[tokio::test]
async fn an_account_with_more_than_its_share_gives_way_when_all_are_busy() {
    let (room, _tasks, places) = full_limiter(5).await;
    let stays: Vec<ActivityGuard> = places.iter().map(ConnectionPermit::start_activity).collect();
    for (stay, account) in stays.iter().zip([1, 2, 1, 2, 3]) {
        set_owner(stay, account).unwrap();
    }
    room.evict();
    assert_eq!(evicted_indices(&places), [0; 0], "nobody has more than two");
    set_owner(&stays[3], 1).unwrap();
    room.evict();
    assert_eq!(evicted_indices(&places), [3], "the newest");
    stays[3].evicted().await;
}

#[tokio::test]
async fn accounts_that_have_all_places_make_room_for_a_further_one() {
    let (room, _tasks, places) = full_limiter(9).await;
    let stays: Vec<ActivityGuard> = places.iter().map(ConnectionPermit::start_activity).collect();
    for (stay, account) in stays.iter().zip([1, 1, 1, 2, 2, 2, 3, 3, 3]) {
        set_owner(stay, account).unwrap();
    }
    for count in [1, 2, 3, 3] {
        room.evict();
        assert_eq!(evicted_indices(&places).len(), count);
    }
    assert_eq!(evicted_indices(&places), [2, 5, 8], "the newest of each; then nobody has more than two");
}

#[tokio::test]
async fn callers_that_share_a_connection_have_room_of_their_own_for_answers() {
    let (_room, _tasks, places) = full_limiter(1).await;
    let call_of = |account: u64| {
        let call = places[0].start_activity();
        let answers = || AccountBuffers { requests: None, answers: Some(ByteBudget::new(MAX_ANSWER_BYTES)) };
        call.count_for(ConnectionOwner::Account(AccountId(account)), 3, answers).unwrap();
        call
    };
    let (one, other) = (call_of(1), call_of(2));
    let _unread = one.reserve(MAX_ANSWER_BYTES as usize).ok().unwrap();
    assert!(one.reserve(1).is_err() && other.reserve(MAX_ANSWER_BYTES as usize).is_ok());
    one.mark_refused();
    assert!(one.is_shared() && !one.is_refused(), "it does not end for both");
}

#[tokio::test]
async fn a_place_is_free_when_all_that_runs_on_the_connection_has_ended() {
    let (room, tasks, mut places) = full_limiter(1).await;
    let stay = places[0].start_activity();
    places.clear();
    assert!(room.free.try_acquire().is_err() && !tasks.is_empty());
    drop(stay);
    assert!(room.free.try_acquire().is_ok() && tasks.is_empty() && room.connections.lock().is_empty());
}

#[tokio::test]
async fn an_account_has_so_many_connections_and_another_has_its_own() {
    let (room, _tasks, mut places) = full_limiter(6).await;
    let activities: Vec<ActivityGuard> = places.iter().map(ConnectionPermit::start_activity).collect();
    for activity in &activities[..3] {
        set_owner(activity, 1).unwrap();
        set_owner(activity, 1).unwrap();
    }
    let refused = set_owner(&activities[3], 1).unwrap_err();
    assert_eq!((refused.code, refused.retry_after_seconds()), (holdfast_api::Code::RateLimited, Some(1)));
    assert_eq!(refused.ids, [("limit", "max_connections".to_owned()), ("max", "3".to_owned())]);
    assert!(activities[3].is_refused() && !activities[0].is_refused());
    set_owner(&activities[4], 2).unwrap();
    assert!(set_owner(&activities[4], 1).is_err() && !activities[4].is_refused(), "others may share it");
    // A connection that passes to another account makes room.
    set_owner(&activities[0], 2).unwrap();
    set_owner(&activities[5], 1).unwrap();
    drop(activities);
    places.clear();
    assert_eq!([1, 2].map(|account| room.accounts.used(AccountId(account))), [0, 0]);
}
