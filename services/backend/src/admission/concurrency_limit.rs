//! Adaptive limits on calls in flight. One limit covers all accounts together, as long as calls finish in good time.
//! Each busy account also has a share, as long as calls take about as long as they do without load.

use std::time::Duration;

use tokio::time::Instant;

/// Time between two updates.
const UPDATE_INTERVAL: Duration = Duration::from_millis(100);
/// Bounds of the limit on calls in flight; the minimum applies however slow they are.
const MAX_LIMIT: usize = 1_024;
const MIN_LIMIT: usize = 64;
/// The minimum for one account, however slow its calls are.
const MIN_SHARE: usize = 1;
/// Calls with a longer mean latency are too slow to be useful.
const MAX_MEAN_LATENCY: Duration = Duration::from_millis(200);
/// Beside a light account, calls may take this many halves of the baseline, plus the slack.
const MAX_SLOWDOWN_HALVES: u32 = 3;
const LATENCY_SLACK: Duration = Duration::from_micros(200);
/// With each update the baseline may rise by one part in this many, when the share is already minimal: twofold in a
/// minute.
const BASELINE_DRIFT_DIVISOR: u32 = 1_024;
/// With each update the baseline falls by one part in this many of the difference to a faster sample. Towards a slower
/// one it rises by at most one part in this many of itself.
const BASELINE_FALL_DIVISOR: u32 = 8;
const BASELINE_RISE_DIVISOR: u32 = 256;
/// No command is faster, because it must reach a disk and a network first.
const MIN_BASELINE: Duration = Duration::from_micros(100);
/// At most this many calls in flight count as light load.
pub(super) const MAX_LIGHT_CALLS: usize = 4;
/// An account is kept for this many updates after its last call.
const MAX_IDLE_TICKS: u32 = 300;
/// With each update the decaying peak of calls shrinks by this factor: after half a minute little of it is left.
const PEAK_DECAY: f64 = 0.98;

/// The load of an account.
#[derive(Default)]
pub(super) struct AccountLoad {
    /// The most concurrent calls since the last update.
    peak: usize,
    /// The recent peak, which decays with each update.
    recent_peak: f64,
    /// Updates since its last call.
    idle_ticks: u32,
}

/// The limit on calls in flight.
pub(super) struct ConcurrencyLimit {
    /// Whether it stays as it is, however long calls take.
    is_fixed: bool,
    limit: usize,
    share: usize,
    /// The time of a command under light load.
    baseline: Option<Duration>,
    /// Latencies since the last update: of all calls, of completed commands, and of completed commands that began under
    /// light load.
    all: LatencyMean,
    done: LatencyMean,
    unloaded: LatencyMean,
    slow_calls: u32,
    due_at: Option<Instant>,
}

/// Accumulates times for their mean.
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

    /// Returns the mean and starts again.
    fn take_mean(&mut self) -> Option<Duration> {
        let Self { sum, count } = std::mem::take(self);
        (count > 0).then(|| sum / count)
    }
}

impl Default for ConcurrencyLimit {
    fn default() -> Self {
        let (all, done, unloaded) = Default::default();
        let (limit, share) = (MAX_LIMIT, MAX_LIMIT);
        Self { is_fixed: false, limit, share, baseline: None, all, done, unloaded, slow_calls: 0, due_at: None }
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

    /// Returns whether its load is so light that it is protected from others.
    pub(super) fn is_light(&self) -> bool {
        self.recent_peak <= MAX_LIGHT_CALLS as f64
    }
}

impl ConcurrencyLimit {
    /// A limit that does not adapt.
    pub(super) fn fixed(limit: usize) -> Self {
        Self { is_fixed: true, limit, share: limit, ..Self::default() }
    }

    /// A limit that does not adapt, with such a share for each account.
    #[cfg(test)]
    pub(super) fn with_share(limit: usize, share: usize) -> Self {
        Self { share, ..Self::fixed(limit) }
    }

    /// Whether it does not adapt.
    pub(super) fn is_fixed(&self) -> bool {
        self.is_fixed
    }

    /// The limit on calls in flight.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// The limit of one account.
    pub(super) fn share(&self) -> usize {
        self.share
    }

    /// Records the end of a call. Completed commands that began under light load define the baseline. Commands that
    /// began while calls were queued do not count, or slow would soon pass for normal. Neither do reads and rejections,
    /// which are quick under any load.
    pub(super) fn record(&mut self, time: Duration, is_done: bool, is_easy: bool) {
        if self.is_fixed {
            return;
        }
        self.all.add(time);
        if is_done {
            self.done.add(time);
        }
        if is_done && is_easy {
            self.unloaded.add(time);
        }
    }

    /// Records a call without a reply in good time.
    pub(super) fn record_slow(&mut self) {
        self.slow_calls += u32::from(!self.is_fixed);
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due_at.is_none_or(|due_at| now >= due_at)
    }

    /// Updates the limits from the latencies since the last update.
    pub(super) fn tick<'a>(&mut self, now: Instant, loads: impl Iterator<Item = &'a mut AccountLoad>) {
        self.due_at = Some(now + UPDATE_INTERVAL);
        let (mut any_little, mut most) = (false, 0);
        for load in loads {
            most = most.max(load.peak);
            load.tick();
            any_little |= load.is_light();
        }
        let mean = self.all.take_mean();
        // Calls that wait for a leader say nothing about the others; when no call gets a reply, all are slow.
        let is_slow = mean.map_or(self.slow_calls > 0, |mean| mean > MAX_MEAN_LATENCY);
        if self.is_fixed {
            return;
        }
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

    /// `mean` is of commands that completed beside a light account.
    fn adjust_share(&mut self, mean: Option<Duration>, most: usize) {
        let slow =
            mean.zip(self.baseline).filter(|(mean, usual)| *mean > *usual * MAX_SLOWDOWN_HALVES / 2 + LATENCY_SLACK);
        let Some((_, usual)) = slow else {
            self.share = increased(self.share);
            return;
        };
        if self.share > MIN_SHARE {
            // Decreases from actual use: an allowance beyond that has no effect.
            self.share = decreased(self.share.min(most), MIN_SHARE);
        } else {
            // With so few calls in flight, other calls are not the cause of the latency.
            self.baseline = Some(usual + usual / BASELINE_DRIFT_DIVISOR);
        }
    }
}

/// Returns the new baseline after a sample: it falls fast and rises slowly. Work without permits, such as new
/// connections, keeps processors busy as well and makes calls under light load slow.
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

    /// Updates after calls that took this long.
    fn tick(pace: &mut ConcurrencyLimit, loads: &mut [AccountLoad], millis: u64) {
        pace.record(Duration::from_millis(millis), true, false);
        let now = pace.due_at.unwrap_or_else(Instant::now);
        pace.tick(now, loads.iter_mut());
    }

    fn with_baseline(millis: u64) -> ConcurrencyLimit {
        let mut pace = ConcurrencyLimit::default();
        tick_unloaded(&mut pace, millis);
        pace
    }

    /// Updates after a call that took this long under light load.
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
        let mut loads = [AccountLoad::default(), AccountLoad::default()];
        let mut call = |pace: &mut ConcurrencyLimit, millis| {
            loads[0].record(1);
            loads[1].record(400);
            tick(pace, &mut loads, millis);
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
        let mut loads = [AccountLoad::default(), AccountLoad::default()];
        for _ in 0..50 {
            loads.iter_mut().for_each(|load| load.record(400));
            tick(&mut pace, &mut loads, 50);
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
