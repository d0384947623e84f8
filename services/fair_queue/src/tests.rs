use super::*;

const LIMITS: QueueLimits = QueueLimits { items: 100, bytes: 1_000, lane_items: 50, lane_bytes: 500 };

fn queue() -> FairQueue<u8, u32> {
    FairQueue::new(LIMITS)
}

fn drain(queue: &mut FairQueue<u8, u32>) -> Vec<u32> {
    std::iter::from_fn(|| queue.pop()).map(|served| served.item).collect()
}

#[test]
fn a_lane_is_first_in_first_out() {
    let mut queue = queue();
    for item in 0..5 {
        queue.push(1, 10 - u64::from(item), 1, item).unwrap();
    }
    assert_eq!(queue.len(), 5);
    assert_eq!(drain(&mut queue), [0, 1, 2, 3, 4]);
    assert!(queue.is_empty());
}

#[test]
fn lanes_share_by_cost_and_not_by_number() {
    let mut queue = queue();
    for item in 0..40 {
        queue.push(1, 10, 1, item).unwrap();
    }
    for item in 100..104 {
        queue.push(2, 40, 1, item).unwrap();
    }
    let first: Vec<u32> = (0..15).map(|_| queue.pop().unwrap().item).collect();
    let of_second = first.iter().filter(|item| **item >= 100).count();
    assert_eq!(of_second, 3, "one of 40 for four of 10: {first:?}");
}

#[test]
fn one_that_comes_late_does_not_wait_behind_a_long_lane() {
    let mut queue = queue();
    for item in 0..50 {
        queue.push(1, 8, 1, item).unwrap();
    }
    for _ in 0..10 {
        queue.pop().unwrap();
    }
    queue.push(2, 8, 1, 100).unwrap();
    assert!((0..2).any(|_| queue.pop().unwrap().item == 100));
}

#[test]
fn time_without_items_earns_no_credit() {
    let mut queue = queue();
    for item in 0..40 {
        queue.push(1, 10, 1, item).unwrap();
    }
    (0..20).for_each(|_| drop(queue.pop().unwrap()));
    for item in 100..110 {
        queue.push(2, 10, 1, item).unwrap();
    }
    let next: Vec<u32> = (0..10).map(|_| queue.pop().unwrap().item).collect();
    assert_eq!(next.iter().filter(|item| **item >= 100).count(), 5, "{next:?}");
}

#[test]
fn a_debt_outlives_an_empty_lane() {
    let mut queue = queue();
    queue.push(1, 1_000, 1, 0).unwrap();
    queue.push(2, 1, 1, 100).unwrap();
    assert_eq!(queue.pop().unwrap().item, 0);
    // Lane 1 is empty, and has had a thousand times as much.
    queue.push(1, 1, 1, 1).unwrap();
    for item in 101..110 {
        queue.push(2, 1, 1, item).unwrap();
    }
    assert_eq!(drain(&mut queue).last(), Some(&1));
}

#[test]
fn a_full_lane_refuses_and_leaves_the_others_alone() {
    let mut queue = queue();
    for item in 0..50 {
        queue.push(1, 1, 1, item).unwrap();
    }
    assert_eq!(queue.push(1, 1, 1, 50), Err(Full::Lane));
    assert_eq!(queue.push(2, 1, 500, 100), Ok(None));
    assert_eq!(queue.push(2, 1, 1, 101), Err(Full::Lane), "by bytes");
}

#[test]
fn a_full_queue_makes_room_at_the_end_of_its_longest_lane() {
    let mut queue = queue();
    for lane in 1..=2 {
        for item in 0..50 {
            queue.push(lane, 1, 1, u32::from(lane) * 100 + item).unwrap();
        }
    }
    assert!(queue.push(3, 1, 1, 300).unwrap().is_some_and(|evicted| evicted % 100 == 49));
    assert_eq!(queue.len(), 100);
    let lanes = 4..=100;
    let refused = lanes.filter(|lane| queue.push(*lane, 1, 1, 400).is_err()).count();
    assert_eq!(queue.len(), 100);
    assert!(refused > 0 || queue.peek().is_some());
}

#[test]
fn lanes_that_are_done_are_forgotten() {
    let mut queue: FairQueue<u32, u32> = FairQueue::new(LIMITS);
    for lane in 0..10_000 {
        queue.push(lane, 8, 1, lane).unwrap();
        queue.pop().unwrap();
    }
    assert!(queue.lanes.len() <= 66, "{}", queue.lanes.len());
}
