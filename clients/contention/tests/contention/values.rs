//! Boundaries of values, intervals and ids.

use std::collections::HashSet;
use std::time::Duration;

use holdfast_contention::{
    ContendOptions, ContendPeriod, Contender, ContenderIdGenerator, ContentionError, MutexOwner, MutexState, Pacing,
    Timestamp,
};
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn owner(id: &str) -> MutexOwner {
    MutexOwner::new(id, at(1_000), at(1_400), at(2_000))
}

#[test]
fn the_end_of_the_time_to_live_is_not_in_it_and_the_end_of_the_transition_is() {
    let owner = owner("a");
    for (now, in_ttl, in_transition) in
        [(1_000, true, true), (1_399, true, true), (1_400, false, true), (2_000, false, true), (2_001, false, false)]
    {
        assert_eq!(owner.is_in_ttl_at(at(now)), in_ttl, "at {now}");
        assert_eq!(owner.is_in_transition_at(at(now)), in_transition, "at {now}");
        assert_eq!(owner.has_owner_at(at(now)), in_transition, "at {now}");
    }
}

#[test]
fn time_says_nothing_about_who_it_is_and_the_other_way_round() {
    let now = Timestamp::now();
    let present = MutexOwner::new("a", now, Timestamp::FOREVER, Timestamp::FOREVER);
    assert!(present.is_owner("a") && !present.is_owner("b"));
    assert!(present.is_in_ttl() && present.is_in_transition() && present.has_owner());
    assert!(present.is_in_ttl_of("a") && !present.is_in_ttl_of("b"));
    assert!(present.is_in_transition_of("a") && !present.is_in_transition_of("b"));
    let past = MutexOwner::new("a", at(0), at(0), at(0));
    assert!(past.is_owner("a") && !past.is_in_ttl() && !past.is_in_ttl_of("a") && !past.has_owner());
}

#[test]
fn nobody_is_no_owner_at_any_time() {
    let none = MutexOwner::NONE;
    assert!(none.is_none() && none.owner_id().is_empty() && none.fencing_token().is_none());
    assert!(!none.is_in_ttl() && !none.is_in_transition() && !none.has_owner());
}

#[test]
fn a_change_is_one_of_the_owner_and_not_of_its_time() {
    let (a, b) = (owner("a"), owner("b"));
    let change = MutexState::new(a.clone(), b.clone());
    assert!(change.is_changed() && change.is_acquired("b") && change.is_released("a") && change.is_owner("b"));
    assert!(!change.is_acquired("a") && !change.is_released("b") && !change.is_owner("a"));
    let renewal = MutexState::new(a.clone(), MutexOwner::new("a", at(1_000), at(2_400), at(3_000)));
    assert!(!renewal.is_changed() && !renewal.is_acquired("a") && !renewal.is_released("a") && renewal.is_owner("a"));
    assert!(!MutexState::NONE.is_changed());
    assert!(MutexState::new(a.clone(), MutexOwner::NONE).is_released("a"));
    let lasting = MutexOwner::new("b", at(0), Timestamp::FOREVER, Timestamp::FOREVER);
    assert!(MutexState::new(a.clone(), lasting.clone()).is_in_ttl("b"));
    assert!(!MutexState::new(a.clone(), lasting).is_in_ttl("a"));
    assert!(!MutexState::new(a, b).is_in_ttl("b"), "it is over long since");
}

/// Always the same number, at one end of all that there are.
struct ConstantRng(u64);

impl RngCore for ConstantRng {
    fn next_u32(&mut self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn next_u64(&mut self) -> u64 {
        self.0
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        bytes.fill(self.0 as u8);
    }
}

#[test]
fn an_owner_asks_at_the_end_of_its_time_to_live() {
    let period = ContendPeriod::new("a");
    for (now, delay) in [(1_000, 400), (1_399, 1), (1_400, 0), (1_500, -100)] {
        assert_eq!(period.next_delay(&owner("a"), at(now)), delay);
        assert_eq!(ContendPeriod::next_owner_delay(&owner("a"), at(now)), delay);
        let ensured = Duration::from_millis(delay.max(0).unsigned_abs());
        assert_eq!(period.ensure_next_delay(&owner("a"), at(now)), ensured, "never below zero");
    }
}

#[test]
fn others_ask_around_the_end_of_the_transition() {
    let delay =
        |owner: &MutexOwner, now, number| ContendPeriod::next_contender_delay(owner, at(now), &mut ConstantRng(number));
    let with = owner("a");
    assert_eq!((delay(&with, 1_000, 0), delay(&with, 1_000, u64::MAX)), (800, 1_999));
    let without = MutexOwner::new("a", at(1_000), at(2_000), at(2_000));
    assert_eq!((delay(&without, 1_000, 0), delay(&without, 1_000, u64::MAX)), (1_000, 1_999));
    assert_eq!(delay(&with, 3_000, 0), -1_200);
    assert_eq!(ContendPeriod::new("b").ensure_next_delay(&with, at(5_000)), Duration::ZERO, "never below zero");
    let for_ever = MutexOwner::new("a", at(0), Timestamp::FOREVER, Timestamp::FOREVER);
    assert!(delay(&for_ever, 1_000, 0) > i64::MAX / 2, "no overflow");
}

#[test]
fn others_do_not_ask_all_at_once() {
    let mut random = StdRng::seed_from_u64(1);
    let mut delays = || ContendPeriod::next_contender_delay(&owner("a"), at(2_000), &mut random);
    let drawn: Vec<i64> = (0..10_000).map(|_| delays()).collect();
    assert!(drawn.iter().all(|delay| (-200..1_000).contains(delay)));
    let hundreds: HashSet<i64> = drawn.iter().map(|delay| delay.div_euclid(100)).collect();
    assert_eq!(hundreds.len(), 12, "all over the interval");
}

#[test]
fn ids_are_of_their_form_and_never_the_same() {
    let [first, second] = [(); 2].map(|()| ContenderIdGenerator::HOST.generate());
    let parts = |id: &str| {
        let (counter, rest) = id.split_once(':').unwrap();
        let (pid, address) = rest.split_once('@').unwrap();
        (counter.parse::<u64>().unwrap(), pid.parse::<u32>().unwrap(), address.to_owned())
    };
    let ((first, pid, address), (second, ..)) = (parts(&first), parts(&second));
    assert!(second > first && pid == std::process::id());
    address.parse::<std::net::IpAddr>().unwrap();
    let ids: HashSet<String> = (0..1_000).map(|_| ContenderIdGenerator::UUID.generate()).collect();
    assert_eq!(ids.len(), 1_000);
    let is_hex = |id: &String| id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    assert!(ids.iter().all(is_hex));
}

#[test]
fn contenders_without_a_usable_name_or_id_are_refused() {
    let what = |contender: Result<Contender, ContentionError>| match contender {
        Err(ContentionError::Invalid { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(what(Contender::new("")), "the name of the mutex");
    assert_eq!(what(Contender::new("  ")), "the name of the mutex");
    assert_eq!(what(Contender::new("x".repeat(129))), "the name of the mutex");
    assert_eq!(what(Contender::with_id("x", "")), "the id of the contender");
    assert_eq!(what(Contender::with_id("x", "se_1")), "the id of the contender");
    Contender::with_id("x".repeat(128), "y".repeat(128)).unwrap();
}

#[test]
fn options_have_limits() {
    let (ms, second) = (Duration::from_millis, Duration::from_secs(1));
    let what = |options: ContendOptions| match options.check() {
        Err(ContentionError::Invalid { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(what(ContendOptions::new(ms(99))), "the time to live");
    assert_eq!(what(ContendOptions::new(24 * 3_600 * second + ms(1))), "the time to live");
    assert_eq!(what(ContendOptions::new(second).transition(600 * second + ms(1))), "the transition");
    assert_eq!(what(ContendOptions::new(second).pacing(Pacing::Poll)), "the transition");
    ContendOptions::new(ms(100)).check().unwrap();
    ContendOptions::new(24 * 3_600 * second).transition(600 * second).check().unwrap();
    ContendOptions::new(ms(100)).transition(ms(100)).pacing(Pacing::Poll).check().unwrap();
}
