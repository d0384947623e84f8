//! Metrics of calls, with their handles in memory: finding one through the recorder allocates every label anew.

use std::collections::HashMap;
use std::time::Duration;

use metrics::{Counter, Histogram, histogram};
use parking_lot::RwLock;

/// Maximum combinations of labels in memory. Routes, methods and codes have fewer; beyond the limit, a call is still
/// counted.
const MAX_SERIES: usize = 4_096;

/// Counts the calls of one protocol, by route and by `K`, its other labels.
pub(crate) struct CallMetrics<K> {
    routes: RwLock<RouteTable<K>>,
    /// Finds the counter of a route and the other labels.
    counter: fn(&str, K) -> Counter,
}

struct RouteTable<K> {
    by_route: HashMap<Box<str>, RouteMetrics<K>>,
    /// Combinations of labels in the table.
    series: usize,
}

/// The metrics of one route, which has few methods and codes.
struct RouteMetrics<K> {
    seconds: Histogram,
    calls: Vec<(K, Counter)>,
}

impl<K: Copy + Eq> CallMetrics<K> {
    /// An empty table. `counter` finds the counter of a route and the other labels.
    pub(crate) fn new(counter: fn(&str, K) -> Counter) -> Self {
        Self { routes: RwLock::new(RouteTable { by_route: HashMap::new(), series: 0 }), counter }
    }

    /// Counts a call that took this long. `route` must be one of a limited number of texts.
    pub(crate) fn record(&self, route: &str, key: K, elapsed: Duration) {
        let is_recorded = self.routes.read().record(route, key, elapsed);
        if !is_recorded {
            self.add(route, key, elapsed);
        }
    }

    #[cold]
    fn add(&self, route: &str, key: K, elapsed: Duration) {
        let (calls, seconds) = ((self.counter)(route, key), seconds_histogram(route));
        calls.increment(1);
        seconds.record(elapsed.as_secs_f64());
        let mut table = self.routes.write();
        if table.series >= MAX_SERIES {
            return;
        }
        let metrics = table.by_route.entry(route.into()).or_insert_with(|| RouteMetrics { seconds, calls: Vec::new() });
        // Another call may have added it meanwhile.
        if metrics.calls.iter().all(|(known, _)| *known != key) {
            metrics.calls.push((key, calls));
            table.series += 1;
        }
    }
}

impl<K: Copy + Eq> RouteTable<K> {
    /// Returns whether the labels were in the table.
    fn record(&self, route: &str, key: K, elapsed: Duration) -> bool {
        let Some(metrics) = self.by_route.get(route) else { return false };
        let Some((_, calls)) = metrics.calls.iter().find(|(known, _)| *known == key) else { return false };
        calls.increment(1);
        metrics.seconds.record(elapsed.as_secs_f64());
        true
    }
}

fn seconds_histogram(route: &str) -> Histogram {
    histogram!("holdfast_request_seconds", "route" => route.to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use std::sync::{Arc, LazyLock};

    use metrics::counter;

    use super::*;

    #[test]
    fn a_handle_is_found_once_and_counts_on() {
        static CALLS: LazyLock<Arc<AtomicU64>> = LazyLock::new(Arc::default);
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        let metrics = CallMetrics::new(|_, _: u16| {
            LOOKUPS.fetch_add(1, Ordering::Relaxed);
            Counter::from_arc(Arc::clone(&CALLS))
        });
        for code in [200, 200, 404, 200, 404] {
            metrics.record("/a", code, Duration::from_millis(1));
        }
        metrics.record("/b", 200, Duration::from_millis(1));
        assert_eq!(CALLS.load(Ordering::Relaxed), 6);
        assert_eq!(LOOKUPS.load(Ordering::Relaxed), 3, "once for each combination");
        assert_eq!(metrics.routes.read().series, 3);
    }

    #[test]
    fn the_table_is_bounded_and_counts_beyond_its_bound() {
        static CALLS: LazyLock<Arc<AtomicU64>> = LazyLock::new(Arc::default);
        let metrics = CallMetrics::new(|_, _: usize| Counter::from_arc(Arc::clone(&CALLS)));
        for key in 0..MAX_SERIES {
            metrics.record(&(key / 4).to_string(), key % 4, Duration::ZERO);
        }
        metrics.record("one more", 0, Duration::ZERO);
        metrics.record("0", 4, Duration::ZERO);
        metrics.record("0", 3, Duration::ZERO);
        let table = metrics.routes.read();
        assert_eq!((table.series, table.by_route.len()), (MAX_SERIES, MAX_SERIES / 4));
        assert_eq!(CALLS.load(Ordering::Relaxed), MAX_SERIES as u64 + 3);
    }

    #[test]
    fn without_a_recorder_nothing_is_counted_and_nothing_fails() {
        let metrics = CallMetrics::new(
            |route, code: u16| counter!("holdfast_http_requests_total", "route" => route.to_owned(), "code" => code.to_string()),
        );
        metrics.record("/a", 200, Duration::ZERO);
        assert_eq!(metrics.routes.read().series, 1);
    }
}
