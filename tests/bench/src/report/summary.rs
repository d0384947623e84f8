//! Medians over the rounds.

use serde::Serialize;

use super::{Measurement, Quantiles};
use crate::clients::Target;

/// The rounds of one measurement on one system, as one.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The first of the rounds, for what is the same in all.
    pub first: Measurement,
    /// Median rate.
    pub rate: f64,
    /// Lowest and highest rate.
    pub rate_range: (f64, f64),
    /// Medians of the quantiles of the main phase.
    pub latency: Quantiles,
    /// Median.
    pub server_cpu_us: f64,
    /// Median.
    pub load_cpu_us: f64,
    /// Median.
    pub written_bytes: f64,
    /// Median.
    pub stored_bytes: Option<f64>,
    /// Median.
    pub syncs: Option<f64>,
    /// Median.
    pub rss_mib: f64,
    /// Over all rounds.
    pub errors: u64,
    /// Over all rounds.
    pub unserved: u64,
}

impl Summary {
    /// Whether another is of the same work, maybe on another system.
    pub fn is_same_work(&self, other: &Self) -> bool {
        is_same_work(&self.first, &other.first)
    }

    /// On what.
    pub fn target(&self) -> Target {
        self.first.door
    }
}

pub(super) fn summarize(measurements: &[Measurement]) -> Vec<Summary> {
    let mut groups: Vec<Vec<&Measurement>> = Vec::new();
    for measurement in measurements {
        let same =
            |group: &&mut Vec<&Measurement>| group[0].door == measurement.door && is_same_work(group[0], measurement);
        match groups.iter_mut().find(same) {
            Some(group) => group.push(measurement),
            None => groups.push(vec![measurement]),
        }
    }
    groups.iter().map(|group| summary(group)).collect()
}

fn is_same_work(one: &Measurement, other: &Measurement) -> bool {
    let key = |m: &Measurement| (m.workload.clone(), m.clients, m.namespaces, m.due_per_second.map(f64::to_bits));
    key(one) == key(other)
}

fn summary(group: &[&Measurement]) -> Summary {
    let median_of = |figure: fn(&Measurement) -> f64| median(group.iter().map(|m| figure(m)).collect());
    let optional = |figure: fn(&Measurement) -> Option<f64>| {
        let values: Option<Vec<f64>> = group.iter().map(|m| figure(m)).collect();
        values.map(median)
    };
    let rates = group.iter().map(|m| m.rate);
    Summary {
        first: group[0].clone(),
        rate: median_of(|m| m.rate),
        rate_range: (rates.clone().fold(f64::INFINITY, f64::min), rates.fold(0.0, f64::max)),
        latency: Quantiles {
            p50_us: median_of(|m| m.main_latency().p50_us),
            p99_us: median_of(|m| m.main_latency().p99_us),
            p999_us: median_of(|m| m.main_latency().p999_us),
            max_us: median_of(|m| m.main_latency().max_us),
        },
        server_cpu_us: median_of(|m| m.server_cpu_us),
        load_cpu_us: median_of(|m| m.load_cpu_us),
        written_bytes: median_of(|m| m.written_bytes),
        stored_bytes: optional(|m| m.stored_bytes),
        syncs: optional(|m| m.syncs),
        rss_mib: median_of(|m| m.rss_mib),
        errors: group.iter().map(|m| m.errors).sum(),
        unserved: group.iter().map(|m| m.unserved).sum(),
    }
}

/// Of an even number of values the mean of the middle two; of none, 0.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        length if length % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle() {
        assert!((median(vec![3.0, 1.0, 9.0]) - 3.0).abs() < f64::EPSILON);
        assert!((median(vec![4.0, 1.0, 9.0, 2.0]) - 3.0).abs() < f64::EPSILON);
        assert!(median(Vec::new()).abs() < f64::EPSILON);
    }
}
