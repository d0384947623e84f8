//! How much may be under way: for all accounts together as long as calls are answered in good time, and for each of
//! those that call much as long as calls take about as long as they do when there is little to do.

use std::time::Duration;

use tokio::time::Instant;

/// How often it is looked at.
const EVERY: Duration = Duration::from_millis(100);
/// Calls under way at most, and however slow they are.
const MOST: usize = 1_024;
const LEAST: usize = 64;
/// Of one account, however slow they are.
const LEAST_SHARE: usize = 1;
/// Calls that take longer on average are too slow to be of use.
const SLOW: Duration = Duration::from_millis(200);
/// Beside one that calls little, calls may take so many halves of the usual time, and a little.
const TIMES_IN_HALVES: u32 = 3;
const A_LITTLE: Duration = Duration::from_micros(200);
/// By one of so many parts calls may become slower with each look, when no less can be under way: twofold in a minute.
const FORGIVES: u32 = 1_024;
/// With each look calls may become usual that are faster by one of so many parts of the difference, or slower by one of
/// so many parts.
const FALLS: u32 = 8;
const RISES: u32 = 256;
/// No command is done faster: it is on a disk and a network first.
const LEAST_USUAL: Duration = Duration::from_micros(100);
/// With so few calls under way there is little to do.
pub(super) const FEW: usize = 4;
/// An account that called is remembered for so many looks.
const REMEMBERED: u32 = 300;
/// A part of the greatest number of calls is forgotten with each look: after half a minute little of it is left.
const FORGETS: f64 = 0.98;

/// What is known of an account.
#[derive(Default)]
pub(super) struct Lane {
    /// The most calls at a time since the last look.
    now: usize,
    /// The most lately, of which a little is forgotten with each look.
    lately: f64,
    /// Looks since it called.
    quiet_for: u32,
}

/// How much may be under way.
pub(super) struct Pace {
    limit: usize,
    share: usize,
    /// How long a command takes when there is little to do.
    usual: Option<Duration>,
    /// How long calls took since the last look: all of them, commands that were done, and those of them that began while
    /// there was little to do.
    all: Times,
    done: Times,
    easy: Times,
    late: u32,
    due_at: Option<Instant>,
}

/// Times of which the mean is wanted.
#[derive(Default)]
struct Times {
    sum: Duration,
    count: u32,
}

impl Times {
    fn add(&mut self, time: Duration) {
        self.sum += time;
        self.count += 1;
    }

    /// The mean, after which it begins anew.
    fn take_mean(&mut self) -> Option<Duration> {
        let Self { sum, count } = std::mem::take(self);
        (count > 0).then(|| sum / count)
    }
}

impl Default for Pace {
    fn default() -> Self {
        let (all, done, easy) = Default::default();
        Self { limit: MOST, share: MOST, usual: None, all, done, easy, late: 0, due_at: None }
    }
}

impl Lane {
    pub(super) fn note(&mut self, calls: usize) {
        self.now = self.now.max(calls);
        if calls > 0 {
            self.quiet_for = 0;
        }
    }

    pub(super) fn is_remembered(&self) -> bool {
        self.quiet_for < REMEMBERED
    }

    fn roll(&mut self) {
        self.lately = (self.lately * FORGETS).max(self.now as f64);
        self.now = 0;
        self.quiet_for += 1;
    }

    /// Whether it calls so little that it is to be protected.
    pub(super) fn calls_little(&self) -> bool {
        self.lately <= FEW as f64
    }
}

impl Pace {
    /// Calls under way at most.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// The same of one account.
    pub(super) fn share(&self) -> usize {
        self.share
    }

    /// A call has ended. Commands that were done and began while there was little to do say how long one takes then: not
    /// those that began while others were kept waiting, or what is slow would soon be taken for usual; nor what is only
    /// looked up or refused, which is quick however much there is to do.
    pub(super) fn took(&mut self, time: Duration, is_done: bool, is_easy: bool) {
        self.all.add(time);
        if is_done {
            self.done.add(time);
        }
        if is_done && is_easy {
            self.easy.add(time);
        }
    }

    /// A call was not answered in good time.
    pub(super) fn took_long(&mut self) {
        self.late += 1;
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due_at.is_none_or(|due_at| now >= due_at)
    }

    /// Looks at how long calls took.
    pub(super) fn roll<'a>(&mut self, now: Instant, lanes: impl Iterator<Item = &'a mut Lane>) {
        self.due_at = Some(now + EVERY);
        let (mut any_little, mut most) = (false, 0);
        for lane in lanes {
            most = most.max(lane.now);
            lane.roll();
            any_little |= lane.calls_little();
        }
        let mean = self.all.take_mean();
        // What waits for a leader says nothing of the others; when nothing at all is answered, all are slow.
        let is_slow = mean.map_or(self.late > 0, |mean| mean > SLOW);
        self.limit = if is_slow { less(self.limit, LEAST) } else { more(self.limit) };
        if let Some(easy) = self.easy.take_mean() {
            let usual = self.usual.map_or(easy, |usual| nearer(usual, easy));
            self.usual = Some(usual.max(LEAST_USUAL));
        }
        let is_crowded = any_little && most > FEW;
        let mean = self.done.take_mean().filter(|_| is_crowded);
        self.fit_share(mean, most);
        self.late = 0;
    }

    /// `mean` is of commands that were done beside an account that calls little.
    fn fit_share(&mut self, mean: Option<Duration>, most: usize) {
        let slow = mean.zip(self.usual).filter(|(mean, usual)| *mean > *usual * TIMES_IN_HALVES / 2 + A_LITTLE);
        let Some((_, usual)) = slow else {
            self.share = more(self.share);
            return;
        };
        if self.share > LEAST_SHARE {
            // From what is really used on: what was allowed beyond that changes nothing.
            self.share = less(self.share.min(most), LEAST_SHARE);
        } else {
            // With so little under way it is not the company that makes them slow.
            self.usual = Some(usual + usual / FORGIVES);
        }
    }
}

/// What calls usually take, after a look at some: soon less, but only slowly more. What takes no turns, as connections
/// that are made, keeps processors busy as well, and easy calls are slow then.
fn nearer(usual: Duration, easy: Duration) -> Duration {
    if easy < usual { usual - (usual - easy) / FALLS } else { easy.min(usual + usual / RISES) }
}

fn less(count: usize, least: usize) -> usize {
    (count - (count / 4).max(1)).max(least)
}

fn more(count: usize) -> usize {
    (count + count / 16 + 1).min(MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look after calls that took so long.
    fn look(pace: &mut Pace, lanes: &mut [Lane], millis: u64) {
        pace.took(Duration::from_millis(millis), true, false);
        let now = pace.due_at.unwrap_or_else(Instant::now);
        pace.roll(now, lanes.iter_mut());
    }

    fn with_usual(millis: u64) -> Pace {
        let mut pace = Pace::default();
        look_at_easy(&mut pace, millis);
        pace
    }

    /// A look after a call that took so long although there was little to do.
    fn look_at_easy(pace: &mut Pace, millis: u64) {
        pace.took(Duration::from_millis(millis), true, true);
        pace.roll(Instant::now(), std::iter::empty());
    }

    #[test]
    fn what_is_slow_for_a_while_is_not_taken_for_usual() {
        let mut pace = with_usual(8);
        for _ in 0..40 {
            look_at_easy(&mut pace, 1);
        }
        let usual = pace.usual.unwrap();
        assert!(usual < Duration::from_micros(1_100), "{usual:?} after four seconds");
        for _ in 0..20 {
            look_at_easy(&mut pace, 8);
        }
        assert!(pace.usual.unwrap() < usual * 11 / 10, "two seconds are no reason to think otherwise");
        for _ in 0..1_000 {
            look_at_easy(&mut pace, 8);
        }
        assert_eq!(pace.usual, Some(Duration::from_millis(8)), "what stays is usual");
    }

    #[test]
    fn what_is_looked_up_or_refused_says_nothing_of_what_is_usual() {
        let mut pace = with_usual(3);
        for _ in 0..100 {
            pace.took(Duration::from_nanos(50), false, true);
            pace.roll(Instant::now(), std::iter::empty());
        }
        assert_eq!(pace.usual, Some(Duration::from_millis(3)));
        for _ in 0..100 {
            pace.took(Duration::from_nanos(50), true, true);
            pace.roll(Instant::now(), std::iter::empty());
        }
        assert_eq!(pace.usual, Some(LEAST_USUAL));
    }

    #[test]
    fn beside_one_that_calls_little_the_others_get_less_until_calls_are_fast_again() {
        let mut pace = with_usual(2);
        let mut lanes = [Lane::default(), Lane::default()];
        let mut call = |pace: &mut Pace, millis| {
            lanes[0].note(1);
            lanes[1].note(400);
            look(pace, &mut lanes, millis);
        };
        call(&mut pace, 9);
        assert_eq!(pace.share(), 300, "a quarter less than is used");
        for _ in 0..50 {
            call(&mut pace, 9);
        }
        assert_eq!(pace.share(), LEAST_SHARE);
        for _ in 0..200 {
            call(&mut pace, 2);
        }
        assert_eq!(pace.share(), MOST);
    }

    #[test]
    fn accounts_that_all_call_much_are_not_held_back() {
        let mut pace = with_usual(2);
        let mut lanes = [Lane::default(), Lane::default()];
        for _ in 0..50 {
            lanes.iter_mut().for_each(|lane| lane.note(400));
            look(&mut pace, &mut lanes, 50);
        }
        assert_eq!((pace.share(), pace.limit()), (MOST, MOST));
    }

    #[test]
    fn less_is_under_way_while_calls_are_too_slow_to_be_of_use() {
        let mut pace = Pace::default();
        for _ in 0..20 {
            look(&mut pace, &mut [], 300);
        }
        assert_eq!(pace.limit(), LEAST);
        for _ in 0..100 {
            look(&mut pace, &mut [], 100);
        }
        assert_eq!(pace.limit(), MOST);
    }

    #[test]
    fn calls_that_wait_for_a_leader_hold_nobody_else_back() {
        let mut pace = Pace::default();
        for _ in 0..20 {
            pace.took_long();
            look(&mut pace, &mut [], 1);
        }
        assert_eq!(pace.limit(), MOST);
        for _ in 0..20 {
            pace.took_long();
            pace.roll(Instant::now(), std::iter::empty());
        }
        assert_eq!(pace.limit(), LEAST);
    }
}
