//! What came of the attacks: what is not as it should be, and a table for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::attacks::Attack;
use super::grpc_client::CallStats;
use super::quiet_tenant::Window;
use super::testbed::Deployment;

/// The longest that a call of the quiet account may take, in ms.
const MAX_CALL_MS: f64 = 100.0;
/// In ms. On any machine, however busy, a longer call means that something was blocked.
const STALL_MS: f64 = 3_000.0;
/// How much longer than when it is calm 99 of 100 of its calls may take.
const MAX_BASELINE_RATIO: f64 = 2.0;
/// Below this p99 in ms nothing is held against an attack: with two processors for seven processes and the load, the
/// scheduler alone makes so much of a difference between two calm windows.
const P99_FLOOR_MS: f64 = 20.0;
const MIB: u64 = 1 << 20;

/// Bytes in MiB.
pub(crate) fn mib(bytes: u64) -> u64 {
    bytes / MIB
}

/// How long the quiet account's calls took, in ms.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct LatencySummary {
    pub calls: usize,
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

impl LatencySummary {
    /// Of these times, in order of size.
    fn of(times: &[Duration]) -> Self {
        let part = |part: f64| {
            let at = (times.len() as f64 * part).ceil() as usize;
            ms(times.get(at.saturating_sub(1)).copied().unwrap_or_default())
        };
        Self { calls: times.len(), p50: part(0.5), p99: part(0.99), max: part(1.0) }
    }

    /// Of a window without the time in which the disk stood still.
    pub(crate) fn without_stalls(window: &Window) -> Self {
        Self::of(&window.times_without_stalls)
    }
}

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 10_000.0).round() / 10.0
}

/// What came of one attack on one service.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Row {
    pub service: String,
    pub attack: String,
    pub what: String,
    pub quiet: LatencySummary,
    /// The same without the time in which the disk itself stood still: what the attack is judged by.
    #[serde(default)]
    pub judged: LatencySummary,
    /// How often the disk stood still, and for how long at most, in ms.
    #[serde(default)]
    pub disk_stalls: (usize, f64),
    /// Without the time in which the disk stood still.
    pub calm: LatencySummary,
    /// Whether calm is beside the polite account: the attack left too little of the processors.
    pub calm_is_polite: bool,
    /// Which part of the time the processors were busy.
    pub busy: f64,
    pub seconds: f64,
    /// Calls and messages of the hostile account, and how many of them were refused, by code.
    pub calls: u64,
    pub refused: BTreeMap<String, u64>,
    /// The slowest of its own that are measured, in ms.
    pub slowest: BTreeMap<String, f64>,
    /// Of the quiet account.
    pub quiet_refused: Vec<String>,
    pub lost: Vec<String>,
    pub deaths: Vec<String>,
    pub leader_changes: u64,
    /// What no slice of apply took longer than, in ms.
    #[serde(default)]
    pub slice_ms: f64,
    /// Of each process, in MiB: before, the most, afterwards.
    pub memory: Vec<[u64; 3]>,
    pub is_memory_back: bool,
    /// Why the attack was not done to its end.
    pub failed: Option<String>,
}

impl Row {
    /// Without what is found out later.
    pub(crate) fn new(kind: Deployment, attack: &Attack, window: &Window, calls: &CallStats, took: Duration) -> Self {
        Self {
            service: name(kind).to_owned(),
            attack: attack.name.to_owned(),
            what: attack.what.to_owned(),
            quiet: LatencySummary::of(&window.times),
            judged: LatencySummary::without_stalls(window),
            disk_stalls: (window.disk_stalls.len(), ms(window.disk_stalls.iter().max().copied().unwrap_or_default())),
            seconds: took.as_secs_f64(),
            calls: calls.total(),
            refused: calls.errors(),
            slowest: calls.slowest().into_iter().map(|(what, time)| (what.to_owned(), ms(time))).collect(),
            quiet_refused: window.errors.clone(),
            lost: window.lost.clone(),
            ..Self::default()
        }
    }

    /// Of an attack that could not begin.
    pub(crate) fn broken(kind: Deployment, attack: &Attack, reason: String) -> Self {
        Self {
            deaths: vec![reason],
            ..Self::new(kind, attack, &Window::default(), &CallStats::default(), Duration::ZERO)
        }
    }

    /// Whether the service may not be as it was.
    pub(crate) fn is_broken(&self) -> bool {
        self.failed.is_some() || !self.deaths.is_empty() || !self.lost.is_empty()
    }

    /// What is not as it should be whatever the machine does besides.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = self.deaths.clone();
        faults.extend(self.failed.iter().map(|reason| format!("the attack: {reason}")));
        faults.extend(self.lost.iter().map(|lost| format!("lost: {lost}")));
        if let Some(first) = self.quiet_refused.first() {
            faults.push(format!("{} quiet calls failed: {first}", self.quiet_refused.len()));
        }
        if self.quiet.max > STALL_MS {
            faults.push(format!("a quiet call took {} ms", self.quiet.max));
        }
        if self.leader_changes > 0 {
            faults.push(format!("{} leaders changed", self.leader_changes));
        }
        if !self.is_memory_back {
            faults.push(format!("memory did not come back: {:?} MiB", self.memory));
        }
        faults
    }

    /// That, and what a machine shows that does nothing else.
    pub(crate) fn findings(&self, attack: &Attack) -> Vec<String> {
        let mut findings = self.faults();
        let allowed = (MAX_BASELINE_RATIO * self.calm.p99).max(P99_FLOOR_MS);
        if self.judged.p99 > allowed {
            findings.push(format!("quiet p99 {} ms, calm {}", self.judged.p99, self.calm.p99));
        }
        if self.judged.max > MAX_CALL_MS.max(MAX_BASELINE_RATIO * self.calm.max) {
            findings.push(format!("a quiet call took {} ms", self.judged.max));
        }
        for [before, most, _] in &self.memory {
            if most - before.min(most) > attack.max_growth_mib {
                findings.push(format!("a process grew by {} MiB, not {}", most - before, attack.max_growth_mib));
            }
        }
        for (what, within) in attack.limits {
            let slowest = self.slowest.get(*what).copied().unwrap_or_default();
            if slowest > ms(*within).max(MAX_BASELINE_RATIO * self.calm.max) {
                findings.push(format!("{what} took {slowest} ms"));
            }
        }
        findings
    }
}

/// What a service is called.
pub(crate) fn name(kind: Deployment) -> &'static str {
    match kind {
        Deployment::Standalone => "standalone",
        Deployment::Cluster => "cluster",
    }
}

/// The rows as a table, each beside that of an earlier build if there is one.
pub(crate) fn table(rows: &[Row], before: &[Row], findings: &dyn Fn(&Row) -> Vec<String>) -> String {
    let mut text = String::new();
    for service in ["standalone", "cluster"] {
        let own: Vec<&Row> = rows.iter().filter(|row| row.service == service).collect();
        if own.is_empty() {
            continue;
        }
        let earlier = |row: &Row| before.iter().find(|old| old.service == service && old.attack == row.attack);
        let columns = "attack | before | quiet p50, p99, longest | disk stalls | calm p50, p99 | slices up to | busy | memory: before, most, after \
                       | its calls | its own slowest | found";
        let _ = writeln!(text, "\n## {}\n\n| {columns} |\n|{}", title(service), "---|".repeat(11));
        for row in own {
            let was = earlier(row).map_or_else(String::new, earlier_summary);
            let found = findings(row);
            let found = if found.is_empty() { "nothing".to_owned() } else { found.join("; ") };
            let _ = writeln!(text, "| {} | {was} | {} | {found} |", row.attack, cells(row));
        }
    }
    text
}

fn title(service: &str) -> &'static str {
    if service == "standalone" { "One process" } else { "Three nodes, each with a gateway" }
}

fn cells(row: &Row) -> String {
    let quiet = format!("{}, {}, {}", row.quiet.p50, row.quiet.p99, row.quiet.max);
    let stalls = match row.disk_stalls {
        (0, _) => String::new(),
        (count, longest) => format!("{count}, up to {longest}"),
    };
    let calm = format!("{}, {}{}", row.calm.p50, row.calm.p99, if row.calm_is_polite { " (polite)" } else { "" });
    // Of the process that grew most.
    let memory = row.memory.iter().max_by_key(|[before, most, _]| most - before.min(most));
    let memory = memory.map_or_else(String::new, |[before, most, after]| format!("{before}, {most}, {after}"));
    let refused: Vec<String> = row.refused.iter().map(|(code, count)| format!("{count} {code}")).collect();
    let refused = if refused.is_empty() { String::new() } else { format!(" ({})", refused.join(", ")) };
    let slowest: Vec<String> = row.slowest.iter().map(|(what, ms)| format!("{what} {ms}")).collect();
    let busy = (row.busy * 100.0).round();
    format!(
        "{quiet} | {stalls} | {calm} | {} | {busy} % | {memory} | {}{refused} in {:.0} s | {}",
        row.slice_ms,
        row.calls,
        row.seconds,
        slowest.join(", ")
    )
}

/// What an earlier build did, in short.
fn earlier_summary(row: &Row) -> String {
    let most = row.memory.iter().map(|[before, most, _]| most - before.min(most)).max().unwrap_or_default();
    let mut said = format!("p99 {}, longest {}, +{most} MiB", row.quiet.p99, row.quiet.max);
    for (is_so, what) in [
        (!row.deaths.is_empty(), "**a shard died**"),
        (row.leader_changes > 0, "leaders changed"),
        (row.failed.is_some(), "not done in time"),
        (!row.quiet_refused.is_empty(), "quiet calls failed"),
        (!row.lost.is_empty(), "lost something"),
    ] {
        if is_so {
            let _ = write!(said, ", {what}");
        }
    }
    said
}
