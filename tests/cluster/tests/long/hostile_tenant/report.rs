//! What came of the attacks: what is not as it should be, and a table for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::attacks::Attack;
use super::grpc_client::CallStats;
use super::quiet_tenant::Window;
use super::testbed::Deployment;

/// In ms. On any machine, however busy, a longer call means that something was blocked.
const STALL_MS: f64 = 3_000.0;
/// How much longer than when it is calm half of its calls, and 99 of 100 of them, may take.
const MAX_BASELINE_RATIO: f64 = 2.0;
/// The same for 999 of 1,000.
const MAX_TAIL_RATIO: f64 = 5.0;
/// Below these times in ms nothing is held against an attack: with two processors for seven processes and the load, the
/// scheduler alone makes so much of a difference between two calm windows.
const P50_FLOOR_MS: f64 = 8.0;
const P99_FLOOR_MS: f64 = 20.0;
const P999_FLOOR_MS: f64 = 100.0;
/// What a slice of apply may take of processor time in ms.
const MAX_SLICE_MS: f64 = 2.0;
/// By how much a process may exceed its memory before all attacks, in MiB.
const MAX_IDLE_GROWTH_MIB: u64 = 1_536;
/// A snapshot is due after 50,000 entries; as many may come while it is written.
const MAX_SNAPSHOT_LAG: u64 = 100_000;
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
    /// 0 in rows of builds that did not measure it.
    #[serde(default)]
    pub p999: f64,
    pub max: f64,
}

impl LatencySummary {
    /// Of these times, in order of size.
    fn of(times: &[Duration]) -> Self {
        let part = |part: f64| {
            let at = (times.len() as f64 * part).ceil() as usize;
            ms(times.get(at.saturating_sub(1)).copied().unwrap_or_default())
        };
        Self { calls: times.len(), p50: part(0.5), p99: part(0.99), p999: part(0.999), max: part(1.0) }
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
    /// How many accounts made it at once; 0 stands for one in rows of builds that had no other.
    #[serde(default)]
    pub accounts: usize,
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
    /// What no slice of apply took more processor time than, in ms.
    #[serde(default)]
    pub slice_ms: f64,
    /// The same when it is calm.
    #[serde(default)]
    pub calm_slice_ms: f64,
    /// Entries of a group that were in no snapshot of a replica afterwards, where they were most.
    #[serde(default)]
    pub snapshot_lag: u64,
    /// Of each process, in MiB: before, the most, afterwards.
    pub memory: Vec<[u64; 3]>,
    pub is_memory_back: bool,
    /// Of each process before all attacks, in MiB.
    #[serde(default)]
    pub idle_memory: Vec<u64>,
    /// How long the nodes took to serve again after all were killed at once, in seconds, if they were.
    #[serde(default)]
    pub recovery_s: Option<f64>,
    /// Why the attack was not done to its end.
    pub failed: Option<String>,
}

impl Row {
    /// Without what is found out later.
    pub(crate) fn new(
        kind: Deployment,
        attack: &Attack,
        accounts: usize,
        window: &Window,
        calls: &CallStats,
        took: Duration,
    ) -> Self {
        Self {
            service: name(kind).to_owned(),
            attack: attack.name.to_owned(),
            accounts,
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
    pub(crate) fn broken(kind: Deployment, attack: &Attack, accounts: usize, reason: String) -> Self {
        let none = (Window::default(), CallStats::default());
        Self { deaths: vec![reason], ..Self::new(kind, attack, accounts, &none.0, &none.1, Duration::ZERO) }
    }

    /// Sets what the attack is compared with.
    pub(crate) fn set_calm(&mut self, window: &Window, is_polite: bool) {
        (self.calm, self.calm_is_polite) = (LatencySummary::without_stalls(window), is_polite);
        self.calm_slice_ms = window.slice_ms;
    }

    /// The attack, and how many accounts made it if more than one did.
    pub(crate) fn title(&self) -> String {
        let attack = &self.attack;
        if self.accounts > 1 { format!("{attack}, {} accounts", self.accounts) } else { attack.clone() }
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
        if self.judged.max > STALL_MS {
            faults.push(format!("a quiet call took {} ms without the stalls of the disk", self.judged.max));
        }
        if self.leader_changes > 0 {
            faults.push(format!("{} leaders changed", self.leader_changes));
        }
        if !self.is_memory_back {
            faults.push(format!("memory did not come back: {:?} MiB", self.memory));
        }
        if self.snapshot_lag > MAX_SNAPSHOT_LAG {
            faults.push(format!("{} entries of a group are in no snapshot", self.snapshot_lag));
        }
        for ([_, most, _], idle) in self.memory.iter().zip(&self.idle_memory) {
            let growth = most.saturating_sub(*idle);
            if growth > MAX_IDLE_GROWTH_MIB {
                faults.push(format!("a process had {growth} MiB more than before all attacks"));
            }
        }
        faults
    }

    /// That, and what a machine shows that does nothing else.
    pub(crate) fn findings(&self, attack: &Attack) -> Vec<String> {
        let mut findings = self.faults();
        let (judged, calm) = (&self.judged, &self.calm);
        for (part, took, usual, ratio, floor) in [
            ("p50", judged.p50, calm.p50, MAX_BASELINE_RATIO, P50_FLOOR_MS),
            ("p99", judged.p99, calm.p99, MAX_BASELINE_RATIO, P99_FLOOR_MS),
            ("p99.9", judged.p999, calm.p999, MAX_TAIL_RATIO, P999_FLOOR_MS),
        ] {
            if took > floor.max(ratio * usual) {
                findings.push(format!("quiet {part} {took} ms, calm {usual}"));
            }
        }
        if self.slice_ms > MAX_SLICE_MS.max(MAX_BASELINE_RATIO * self.calm_slice_ms) {
            findings.push(format!(
                "a slice took up to {} ms of processor time, calm {}",
                self.slice_ms, self.calm_slice_ms
            ));
        }
        let max_growth_mib = attack.max_growth_mib * self.accounts.max(1) as u64;
        for [before, most, _] in &self.memory {
            if most - before.min(most) > max_growth_mib {
                findings.push(format!("a process grew by {} MiB, not {max_growth_mib}", most - before));
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
        let is_same = |old: &Row, row: &Row| (&old.service, old.title()) == (&row.service, row.title());
        let earlier = |row: &Row| before.iter().find(|old| is_same(old, row));
        let columns = "attack | before | quiet p50, p99, p99.9, longest | disk stalls | calm p50, p99, p99.9 \
                       | CPU of a slice up to | busy | memory: idle, before, most, after | back after a kill, s | its calls \
                       | its own slowest | found";
        let _ = writeln!(text, "\n## {}\n\n| {columns} |\n|{}", title(service), "---|".repeat(12));
        for row in own {
            let was = earlier(row).map_or_else(String::new, earlier_summary);
            let found = findings(row);
            let found = if found.is_empty() { "nothing".to_owned() } else { found.join("; ") };
            let _ = writeln!(text, "| {} | {was} | {} | {found} |", row.title(), cells(row));
        }
    }
    text
}

fn title(service: &str) -> &'static str {
    if service == "standalone" { "One process" } else { "Three nodes, each with a gateway" }
}

fn cells(row: &Row) -> String {
    let LatencySummary { p50, p99, p999, max, .. } = row.quiet;
    let quiet = format!("{p50}, {p99}, {p999}, {max}");
    let stalls = match row.disk_stalls {
        (0, _) => String::new(),
        (count, longest) => format!("{count}, up to {longest}"),
    };
    let LatencySummary { p50, p99, p999, .. } = row.calm;
    let calm = format!("{p50}, {p99}, {p999}{}", if row.calm_is_polite { " (polite)" } else { "" });
    // Of the process that grew most.
    let memory = row.memory.iter().zip(&row.idle_memory).max_by_key(|([before, most, _], _)| most - before.min(most));
    let memory =
        memory.map_or_else(String::new, |([before, most, after], idle)| format!("{idle}, {before}, {most}, {after}"));
    let recovery = row.recovery_s.map_or_else(String::new, |seconds| format!("{seconds:.1}"));
    let refused: Vec<String> = row.refused.iter().map(|(code, count)| format!("{count} {code}")).collect();
    let refused = if refused.is_empty() { String::new() } else { format!(" ({})", refused.join(", ")) };
    let slowest: Vec<String> = row.slowest.iter().map(|(what, ms)| format!("{what} {ms}")).collect();
    let busy = (row.busy * 100.0).round();
    format!(
        "{quiet} | {stalls} | {calm} | {}, calm {} | {busy} % | {memory} | {recovery} | {}{refused} in {:.0} s | {}",
        row.slice_ms,
        row.calm_slice_ms,
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

#[test]
fn a_slice_is_judged_by_its_processor_time() {
    let attack = &super::attacks::ALL[0];
    let found = |(slice_ms, calm_slice_ms)| {
        let row = Row { slice_ms, calm_slice_ms, is_memory_back: true, ..Row::default() };
        row.findings(attack).len()
    };
    assert_eq!([(2.0, 0.5), (2.5, 0.5), (5.0, 2.5)].map(found), [0, 1, 0]);
}
