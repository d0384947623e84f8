//! Tables of permits beside locks, and of those who wait for a latch, with what they are meant to reach.

use comfy_table::Table;

use super::table::{align, table};
use super::{Report, Summary};

/// How much longer a pair of a permit may take than that of a lock.
const MAX_PERMIT_RATIO: f64 = 1.15;
/// Within which all who wait for a latch are to be told.
const MAX_ALL_TOLD_MS: f64 = 500.0;

fn verdict(is_met: bool) -> &'static str {
    if is_met { "met" } else { "missed" }
}

/// Each work with permits beside the same with locks. In a closed loop, rates are to one another as the times of all
/// phases together.
pub(super) fn permits(summaries: &[Summary], preset: &str) -> Table {
    let header = ["work", "clients", "system", "time", "p50", "p99", "CPU/op", "at most 1.15 x"];
    let mut table = table(preset, &header);
    for own in summaries {
        let is_beside = |other: &&Summary| {
            let (own, other) = (&own.first, &other.first);
            own.beside.as_ref() == Some(&other.workload)
                && (own.door, own.at, own.clients, own.namespaces)
                    == (other.door, other.at, other.clients, other.namespaces)
        };
        let Some(locks) = summaries.iter().find(is_beside) else { continue };
        let ratio = |one: f64, other: f64| if other > 0.0 { format!("{:.2} x", one / other) } else { "-".to_owned() };
        table.add_row([
            own.first.workload.clone(),
            own.first.clients.to_string(),
            own.first.system(),
            ratio(locks.rate, own.rate),
            ratio(own.latency.p50_us, locks.latency.p50_us),
            ratio(own.latency.p99_us, locks.latency.p99_us),
            ratio(own.server_cpu_us, locks.server_cpu_us),
            verdict(locks.rate <= own.rate * MAX_PERMIT_RATIO).to_owned(),
        ]);
    }
    align(table, &[0, 2, 7])
}

pub(super) fn latch_waiters(report: &Report, preset: &str) -> Table {
    let header =
        ["waiters", "rounds", "first told p50 ms", "all told p50 ms", "longest ms", "server CPU µs each", "500 ms"];
    let mut table = table(preset, &header);
    if let Some(seen) = &report.latch_waiters {
        let ms = |us: f64| us / 1_000.0;
        table.add_row([
            seen.waiters.to_string(),
            seen.rounds.to_string(),
            format!("{:.1}", ms(seen.first_told.p50_us)),
            format!("{:.1}", ms(seen.all_told.p50_us)),
            format!("{:.1}", ms(seen.all_told.max_us)),
            format!("{:.1}", seen.server_cpu_us),
            verdict(ms(seen.all_told.p50_us) <= MAX_ALL_TOLD_MS).to_owned(),
        ]);
    }
    align(table, &[6])
}

/// How soon after the beginning of an epoch 100,000 holds of 10,000 sessions, and 1,000,000, are to be in the table.
fn max_rebuild_ms(holds: usize) -> f64 {
    if holds <= 100_000 { 150.0 } else { 5_000.0 }
}

pub(super) fn rebuild(report: &Report, preset: &str) -> Table {
    let header = [
        "sessions",
        "holds each",
        "kills",
        "ready after kill p50 ms",
        "rebuild p50 ms",
        "longest ms",
        "leader bytes/hold",
        "gateway bytes/hold",
        "goal",
    ];
    let mut table = table(preset, &header);
    if let Some(seen) = &report.rebuild {
        let ms = |us: f64| us / 1_000.0;
        let max_ms = max_rebuild_ms(seen.sessions * seen.holds_each);
        table.add_row([
            seen.sessions.to_string(),
            seen.holds_each.to_string(),
            seen.kills.to_string(),
            format!("{:.0}", ms(seen.ready.p50_us)),
            format!("{:.0}", ms(seen.rebuild.p50_us)),
            format!("{:.0}", ms(seen.rebuild.max_us)),
            format!("{:.0}", seen.leader_bytes),
            format!("{:.0}", seen.gateway_bytes),
            format!("{max_ms:.0} ms: {}", verdict(ms(seen.rebuild.p50_us) <= max_ms)),
        ]);
    }
    align(table, &[8])
}
