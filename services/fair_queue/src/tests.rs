use super::*;

const LIMITS: QueueLimits = QueueLimits { total: 100, lane: 50 };

/// Items with the costs that they are served at.
fn queue(items: impl IntoIterator<Item = (u8, u64, u32)>) -> FairQueue<u8, (u64, u32)> {
    let mut queue = FairQueue::new(LIMITS);
    for (lane, cost, item) in items {
        queue.push(lane, 1, (cost, item)).unwrap();
    }
    queue
}

fn serve(queue: &mut FairQueue<u8, (u64, u32)>) -> Option<u32> {
    let cost = queue.peek()?.1.0;
    queue.pop(cost).map(|(_, item)| item)
}

fn serve_all(queue: &mut FairQueue<u8, (u64, u32)>) -> Vec<u32> {
    std::iter::from_fn(|| serve(queue)).collect()
}

#[test]
fn a_lane_is_first_in_first_out() {
    let mut queue = queue((0..5).map(|item| (1, 10 - u64::from(item), item)));
    assert_eq!(queue.len(), 5);
    assert_eq!(serve_all(&mut queue), [0, 1, 2, 3, 4]);
    assert!(queue.is_empty());
}

#[test]
fn lanes_share_by_cost_and_not_by_number() {
    let mut queue = queue((0..40).map(|item| (1, 10, item)).chain((100..104).map(|item| (2, 40, item))));
    let first: Vec<u32> = (0..15).map(|_| serve(&mut queue).unwrap()).collect();
    let of_second = first.iter().filter(|item| **item >= 100).count();
    assert_eq!(of_second, 3, "one of 40 for four of 10: {first:?}");
}

#[test]
fn one_that_comes_late_does_not_wait_behind_a_long_lane() {
    let mut queue = queue((0..50).map(|item| (1, 8, item)));
    assert_eq!((0..10).filter_map(|_| serve(&mut queue)).count(), 10);
    queue.push(2, 1, (8, 100)).unwrap();
    assert!((0..2).any(|_| serve(&mut queue) == Some(100)));
}

#[test]
fn time_without_items_earns_no_credit() {
    let mut queue = queue((0..40).map(|item| (1, 10, item)));
    assert_eq!((0..20).filter_map(|_| serve(&mut queue)).count(), 20);
    for item in 100..110 {
        queue.push(2, 1, (10, item)).unwrap();
    }
    let next: Vec<u32> = (0..10).map(|_| serve(&mut queue).unwrap()).collect();
    assert_eq!(next.iter().filter(|item| **item >= 100).count(), 5, "{next:?}");
}

#[test]
fn a_debt_outlives_an_empty_lane() {
    let mut queue = queue([(1, 1_000, 0), (2, 1, 100)]);
    assert_eq!(serve(&mut queue), Some(0));
    // Lane 1 is empty, and has had a thousand times as much.
    queue.push(1, 1, (1, 1)).unwrap();
    for item in 101..110 {
        queue.push(2, 1, (1, item)).unwrap();
    }
    assert_eq!(serve_all(&mut queue).last(), Some(&1));
}

#[test]
fn what_is_not_served_after_all_costs_its_lane_nothing() {
    let mut queue = queue((0..10).map(|item| (1, 10, item)).chain([(2, 10, 100), (2, 10, 101)]));
    for _ in 0..5 {
        assert_eq!(queue.peek().unwrap().0, 1);
        queue.pop(0).unwrap();
    }
    let next: Vec<u32> = (0..4).map(|_| serve(&mut queue).unwrap()).collect();
    assert_eq!(next.iter().filter(|item| **item < 100).count(), 2, "{next:?}");
}

#[test]
fn a_full_lane_refuses_and_leaves_the_others_alone() {
    let mut queue = queue((0..50).map(|item| (1, 1, item)));
    assert_eq!(queue.push(1, 1, (1, 50)), Err(Full::Lane));
    assert_eq!(queue.push(2, 50, (1, 100)), Ok(Vec::new()));
    assert_eq!(queue.push(2, 1, (1, 101)), Err(Full::Lane));
}

#[test]
fn a_full_queue_makes_room_at_the_end_of_its_largest_lanes() {
    let mut queue = queue((1..=2).flat_map(|lane| (0..50).map(move |item| (lane, 1, u32::from(lane) * 100 + item))));
    let evicted = queue.push(3, 20, (1, 300)).unwrap();
    assert_eq!(evicted.len(), 20);
    assert!(evicted.iter().all(|(_, item)| item % 100 >= 40), "{evicted:?}");
    assert_eq!(queue.len(), 81);
    assert_eq!(queue.push(1, 20, (1, 400)), Err(Full::Lane));
    assert_eq!(queue.push(3, 30, (1, 400)), Err(Full::Queue), "no other lane is larger");
    assert_eq!(serve_all(&mut queue).len(), 81);
    assert!(queue.ready.is_empty() && queue.by_size.is_empty() && queue.size == 0);
}

#[test]
fn no_lane_gives_way_when_that_makes_too_little_room() {
    let mut queue = FairQueue::new(QueueLimits { total: 100, lane: 50 });
    for (lane, items) in [(1, 42), (2, 29), (3, 29)] {
        (0..items).for_each(|item| assert_eq!(queue.push(lane, 1, item), Ok(Vec::new())));
    }
    assert_eq!(queue.push(4, 40, 102), Err(Full::Queue), "lane 1 is larger by 2, and 40 are missing");
    assert_eq!((queue.len(), queue.size), (100, 100));
    assert_eq!(queue.push(4, 20, 103).unwrap().len(), 20);
    assert_eq!((queue.len(), queue.size), (81, 100));
}

#[test]
fn lanes_that_are_done_are_forgotten() {
    let mut queue: FairQueue<u32, u32> = FairQueue::new(LIMITS);
    for lane in 0..10_000 {
        queue.push(lane, 1, lane).unwrap();
        queue.pop(8).unwrap();
    }
    assert!(queue.lanes.len() <= 2 * MIN_SWEEP, "{}", queue.lanes.len());
}

#[test]
fn a_lane_that_is_passed_over_is_the_first_again_the_next_time() {
    let mut queue = queue([(1, 1, 0), (1, 1, 1), (2, 1, 100), (2, 1, 101), (3, 1, 200)]);
    let served = queue.serve(|lane, (cost, _)| if lane == 1 { Decision::PassOver } else { Decision::Serve(*cost) });
    assert_eq!(served.iter().map(|(_, item)| *item).collect::<Vec<_>>(), [100, 200, 101]);
    assert_eq!(queue.len(), 2);
    assert_eq!(serve_all(&mut queue), [0, 1]);
}

#[test]
fn what_is_dropped_costs_nothing_and_a_stop_leaves_the_rest() {
    let mut queue = queue([(1, 10, 0), (1, 10, 1), (2, 10, 100), (2, 10, 101)]);
    let mut left = 3;
    let served = queue.serve(|_, (cost, item)| {
        left -= 1;
        match (*item, left) {
            (0, _) => Decision::Drop,
            (_, 0) => Decision::Stop,
            _ => Decision::Serve(*cost),
        }
    });
    assert_eq!(served.iter().map(|(_, item)| *item).collect::<Vec<_>>(), [1]);
    assert_eq!(serve_all(&mut queue), [100, 101]);
}

#[test]
fn the_lanes_passed_over_at_a_time_are_bounded() {
    let limits = QueueLimits { total: 1_000, lane: 1 };
    let mut queue = FairQueue::<usize, ()>::new(limits);
    for lane in 0..500 {
        queue.push(lane, 1, ()).unwrap();
    }
    let mut seen = 0;
    let served = queue.serve(|_, ()| {
        seen += 1;
        Decision::PassOver
    });
    assert!(served.is_empty());
    assert_eq!((seen, queue.len()), (MAX_PASSED_OVER + 1, 500));
}

#[test]
fn urgent_items_go_first_in_their_lane_only_and_are_evicted_last() {
    let mut queue = queue((0..3).map(|item| (1, 10, item)).chain([(2, 10, 100), (2, 10, 101)]));
    queue.push_urgent(1, 1, (10, 50)).unwrap();
    queue.push_urgent(1, 1, (10, 51)).unwrap();
    assert_eq!((queue.lane_len(1), queue.lane_size(1)), (5, 3));
    assert_eq!(serve_all(&mut queue), [50, 100, 51, 101, 0, 1, 2]);

    let mut queue = FairQueue::<u8, u32>::new(LIMITS);
    for item in 0..LIMITS.lane as u32 {
        queue.push_urgent(1, 1, item).unwrap();
        queue.push(1, 1, 100 + item).unwrap();
    }
    assert_eq!(queue.push_urgent(1, 1, 200), Err(Full::Lane));
    assert_eq!(queue.push(1, 1, 200), Err(Full::Lane));
    let evicted = queue.push(2, 49, 201).unwrap();
    assert_eq!(evicted.len(), 49);
    assert!(evicted.iter().all(|item| *item >= 100), "{evicted:?}");
    assert_eq!((queue.lane_len(1), queue.lane_size(1)), (51, 1));
}

#[test]
fn a_parked_lane_is_not_looked_at_until_it_is_resumed_and_gains_no_credit() {
    let mut queue = FairQueue::<u32, u32>::new(QueueLimits { total: 10_000, lane: 10_000 });
    for lane in 0..1_000 {
        queue.push(lane, 1, lane).unwrap();
    }
    queue.push(1_000, 1, 1_000).unwrap();
    let park_most = |lane: u32, _: &u32| if lane < 1_000 { Decision::Park } else { Decision::Serve(10) };
    assert_eq!(queue.serve(park_most), [1_000], "however many lanes are parked");
    let mut seen = 0;
    assert!(
        queue
            .serve(|_, _| {
                seen += 1;
                Decision::Stop
            })
            .is_empty()
    );
    assert_eq!((seen, queue.len()), (0, 1_000));
    for item in 0..10 {
        queue.push(1_001, 1, item).unwrap();
    }
    let served = queue.serve(|_, item| if *item < 9 { Decision::Serve(10) } else { Decision::Stop });
    assert_eq!(served.len(), 9);
    queue.resume(7);
    queue.push(7, 1, 2_000).unwrap();
    let order = queue.serve(|_, _| Decision::Serve(20));
    assert_eq!(order, [7, 9, 2_000], "it takes turns from now on");
    queue.resume_all();
    assert_eq!(queue.serve(|_, _| Decision::Serve(1)).len(), 999);
    assert!(queue.is_empty() && queue.parked.is_empty() && queue.by_size.is_empty());
}

#[test]
fn items_that_are_not_wanted_any_more_take_no_room() {
    let mut queue = queue((0..50).map(|item| (1, 1, item)).chain([(2, 1, 100)]));
    queue.push_urgent(1, 1, (1, 50)).unwrap();
    queue.retain(1, |(_, item)| item % 2 == 1);
    assert_eq!((queue.lane_len(1), queue.lane_size(1), queue.len()), (25, 25, 26));
    queue.serve(|lane, _| if lane == 1 { Decision::Park } else { Decision::Serve(1) });
    queue.retain(1, |_| false);
    queue.resume(1);
    assert!(queue.is_empty() && queue.ready.is_empty() && queue.by_size.is_empty() && queue.size == 0);
    queue.push(1, 1, (1, 7)).unwrap();
    assert_eq!(serve_all(&mut queue), [7]);
}

#[test]
fn a_queue_without_a_bound_orders_no_lanes_by_size_and_an_empty_lane_keeps_little_memory() {
    let mut queue = FairQueue::<u8, u32>::new(QueueLimits { total: usize::MAX, lane: usize::MAX });
    for item in 0..10_000 {
        assert_eq!(queue.push(1, 1 << 40, item), Ok(Vec::new()));
    }
    assert!(queue.by_size.is_empty() && queue.size == 10_000 << 40);
    assert_eq!(queue.serve(|_, _| Decision::Serve(1)).len(), 10_000);
    assert_eq!(queue.size, 0);
    assert!(queue.lanes[&1].items.capacity() < 1_000);
}
