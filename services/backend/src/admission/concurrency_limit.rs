//! How much may be under way: for all accounts together as long as calls are answered in good time, and for each of
//! those that call much as long as calls take about as long as they do when there is little to do.

use std::time::Duration;

use tokio::time::Instant;

/// How often it is looked at.
const UPDATE_INTERVAL: Duration = Duration::from_millis(100);
/// Calls under way at most, and however slow they are.
const MAX_LIMIT: usize = 1_024;
const MIN_LIMIT: usize = 64;
/// Of one account, however slow they are.
const MIN_SHARE: usize = 1;
/// Calls that take longer on average are too slow to be of use.
const MAX_MEAN_LATENCY: Duration = Duration::from_millis(200);
/// Beside one that calls little, calls may take so many halves of the usual time, and a little.
const MAX_SLOWDOWN_HALVES: u32 = 3;
const LATENCY_SLACK: Duration = Duration::from_micros(200);
/// By one of so many parts calls may become slower with each look, when no less can be under way: twofold in a minute.
const BASELINE_DRIFT_DIVISOR: u32 = 1_024;
/// With each look calls may become usual that are faster by one of so many parts of the difference, or slower by one of
/// so many parts.
const BASELINE_FALL_DIVISOR: u32 = 8;
const BASELINE_RISE_DIVISOR: u32 = 256;
/// No command is done faster: it is on a disk and a network first.
const MIN_BASELINE: Duration = Duration::from_micros(100);
/// With so few calls under way there is little to do.
pub(super) const MAX_LIGHT_CALLS: usize = 4;
/// An account that called is remembered for so many looks.
const MAX_IDLE_TICKS: u32 = 300;
/// A part of the greatest number of calls is forgotten with each look: after half a minute little of it is left.
const PEAK_DECAY: f64 = 0.98;

/// What is known of an account.
#[derive(Default)]
pub(super) struct AccountLoad {
    /// The most calls at a time since the last look.
    peak: usize,
    /// The most lately, of which a little is forgotten with each look.
    recent_peak: f64,
    /// Looks since it called.
    idle_ticks: u32,
}

/// How much may be under way.
pub(super) struct ConcurrencyLimit {
    limit: usize,
    share: usize,
    /// How long a command takes when there is little to do.
    baseline: Option<Duration>,
    /// How long calls took since the last look: all of them, commands that were done, and those of them that began while
    /// there was little to do.
    all: LatencyMean,
    done: LatencyMean,
    unloaded: LatencyMean,
    slow_calls: u32,
    due_at: Option<Instant>,
}

/// Times of which the mean is wanted.
#[derive(Default)]
struct LatencyMean {
    sum: Duration,
    count: u32,
}

impl LatencyMean {
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

impl Default for ConcurrencyLimit {
    fn default() -> Self {
        let (all, done, unloaded) = Default::default();
        Self { limit: MAX_LIMIT, share: MAX_LIMIT, baseline: None, all, done, unloaded, slow_calls: 0, due_at: None }
    }
}

impl AccountLoad {
    pub(super) fn record(&mut self, calls: usize) {
        self.peak = self.peak.max(calls);
        if calls > 0 {
            self.idle_ticks = 0;
        }
    }

    pub(super) fn is_recent(&self) -> bool {
        self.idle_ticks < MAX_IDLE_TICKS
    }

    fn tick(&mut self) {
        self.recent_peak = (self.recent_peak * PEAK_DECAY).max(self.peak as f64);
        self.peak = 0;
        self.idle_ticks += 1;
    }

    /// Whether it calls so little that it is to be protected.
    pub(super) fn is_light(&self) -> bool {
        self.recent_peak <= MAX_LIGHT_CALLS as f64
    }
}

impl ConcurrencyLimit {
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
    pub(super) fn record(&mut self, time: Duration, is_done: bool, is_easy: bool) {
        self.all.add(time);
        if is_done {
            self.done.add(time);
        }
        if is_done && is_easy {
            self.unloaded.add(time);
        }
    }

    /// A call was not answered in good time.
    pub(super) fn record_slow(&mut self) {
        self.slow_calls += 1;
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due_at.is_none_or(|due_at| now >= due_at)
    }

    /// Looks at how long calls took.
    pub(super) fn tick<'a>(&mut self, now: Instant, lanes: impl Iterator<Item = &'a mut AccountLoad>) {
        self.due_at = Some(now + UPDATE_INTERVAL);
        let (mut any_little, mut most) = (false, 0);
        for lane in lanes {
            most = most.max(lane.peak);
            lane.tick();
            any_little |= lane.is_light();
        }
        let mean = self.all.take_mean();
        // What waits for a leader says nothing of the others; when nothing at all is answered, all are slow.
        let is_slow = mean.map_or(self.slow_calls > 0, |mean| mean > MAX_MEAN_LATENCY);
        self.limit = if is_slow { decreased(self.limit, MIN_LIMIT) } else { increased(self.limit) };
        if let Some(easy) = self.unloaded.take_mean() {
            let usual = self.baseline.map_or(easy, |usual| smoothed_baseline(usual, easy));
            self.baseline = Some(usual.max(MIN_BASELINE));
        }
        let is_crowded = any_little && most > MAX_LIGHT_CALLS;
        let mean = self.done.take_mean().filter(|_| is_crowded);
        self.adjust_share(mean, most);
        self.slow_calls = 0;
    }

    /// `mean` is of commands that were done beside an account that calls little.
    fn adjust_share(&mut self, mean: Option<Duration>, most: usize) {
        let slow =
            mean.zip(self.baseline).filter(|(mean, usual)| *mean > *usual * MAX_SLOWDOWN_HALVES / 2 + LATENCY_SLACK);
        let Some((_, usual)) = slow else {
            self.share = increased(self.share);
            return;
        };
        if self.share > MIN_SHARE {
            // From what is really used on: what was allowed beyond that changes nothing.
            self.share = decreased(self.share.min(most), MIN_SHARE);
        } else {
            // With so little under way it is not the company that makes them slow.
            self.baseline = Some(usual + usual / BASELINE_DRIFT_DIVISOR);
        }
    }
}

/// What calls usually take, after a look at some: soon less, but only slowly more. What takes no turns, as connections
/// that are made, keeps processors busy as well, and easy calls are slow then.
fn smoothed_baseline(usual: Duration, easy: Duration) -> Duration {
    if easy < usual {
        usual - (usual - easy) / BASELINE_FALL_DIVISOR
    } else {
        easy.min(usual + usual / BASELINE_RISE_DIVISOR)
    }
}

fn decreased(count: usize, least: usize) -> usize {
    (count - (count / 4).max(1)).max(least)
}

fn increased(count: usize) -> usize {
    (count + count / 16 + 1).min(MAX_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look after calls that took so long.
    fn tick(pace: &mut ConcurrencyLimit, lanes: &mut [AccountLoad], millis: u64) {
        pace.record(Duration::from_millis(millis), true, false);
        let now = pace.due_at.unwrap_or_else(Instant::now);
        pace.tick(now, lanes.iter_mut());
    }

    fn with_baseline(millis: u64) -> ConcurrencyLimit {
        let mut pace = ConcurrencyLimit::default();
        tick_unloaded(&mut pace, millis);
        pace
    }

    /// A look after a call that took so long although there was little to do.
    fn tick_unloaded(pace: &mut ConcurrencyLimit, millis: u64) {
        pace.record(Duration::from_millis(millis), true, true);
        pace.tick(Instant::now(), std::iter::empty());
    }

    #[test]
    fn what_is_slow_for_a_while_is_not_taken_for_usual() {
        let mut pace = with_baseline(8);
        for _ in 0..40 {
            tick_unloaded(&mut pace, 1);
        }
        let usual = pace.baseline.unwrap();
        assert!(usual < Duration::from_micros(1_100), "{usual:?} after four seconds");
        for _ in 0..20 {
            tick_unloaded(&mut pace, 8);
        }
        assert!(pace.baseline.unwrap() < usual * 11 / 10, "two seconds are no reason to think otherwise");
        for _ in 0..1_000 {
            tick_unloaded(&mut pace, 8);
        }
        assert_eq!(pace.baseline, Some(Duration::from_millis(8)), "what stays is usual");
    }

    #[test]
    fn what_is_looked_up_or_refused_says_nothing_of_what_is_usual() {
        let mut pace = with_baseline(3);
        for _ in 0..100 {
            pace.record(Duration::from_nanos(50), false, true);
            pace.tick(Instant::now(), std::iter::empty());
        }
        assert_eq!(pace.baseline, Some(Duration::from_millis(3)));
        for _ in 0..100 {
            pace.record(Duration::from_nanos(50), true, true);
            pace.tick(Instant::now(), std::iter::empty());
        }
        assert_eq!(pace.baseline, Some(MIN_BASELINE));
    }

    #[test]
    fn beside_one_that_calls_little_the_others_get_less_until_calls_are_fast_again() {
        let mut pace = with_baseline(2);
        let mut lanes = [AccountLoad::default(), AccountLoad::default()];
        let mut call = |pace: &mut ConcurrencyLimit, millis| {
            lanes[0].record(1);
            lanes[1].record(400);
            tick(pace, &mut lanes, millis);
        };
        call(&mut pace, 9);
        assert_eq!(pace.share(), 300, "a quarter less than is used");
        for _ in 0..50 {
            call(&mut pace, 9);
        }
        assert_eq!(pace.share(), MIN_SHARE);
        for _ in 0..200 {
            call(&mut pace, 2);
        }
        assert_eq!(pace.share(), MAX_LIMIT);
    }

    #[test]
    fn accounts_that_all_call_much_are_not_held_back() {
        let mut pace = with_baseline(2);
        let mut lanes = [AccountLoad::default(), AccountLoad::default()];
        for _ in 0..50 {
            lanes.iter_mut().for_each(|lane| lane.record(400));
            tick(&mut pace, &mut lanes, 50);
        }
        assert_eq!((pace.share(), pace.limit()), (MAX_LIMIT, MAX_LIMIT));
    }

    #[test]
    fn less_is_under_way_while_calls_are_too_slow_to_be_of_use() {
        let mut pace = ConcurrencyLimit::default();
        for _ in 0..20 {
            tick(&mut pace, &mut [], 300);
        }
        assert_eq!(pace.limit(), MIN_LIMIT);
        for _ in 0..100 {
            tick(&mut pace, &mut [], 100);
        }
        assert_eq!(pace.limit(), MAX_LIMIT);
    }

    #[test]
    fn calls_that_wait_for_a_leader_hold_nobody_else_back() {
        let mut pace = ConcurrencyLimit::default();
        for _ in 0..20 {
            pace.record_slow();
            tick(&mut pace, &mut [], 1);
        }
        assert_eq!(pace.limit(), MAX_LIMIT);
        for _ in 0..20 {
            pace.record_slow();
            pace.tick(Instant::now(), std::iter::empty());
        }
        assert_eq!(pace.limit(), MIN_LIMIT);
    }
}
