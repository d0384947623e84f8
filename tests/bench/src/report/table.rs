//! Tables.

use comfy_table::{CellAlignment, Table, presets};

use super::{Report, Summary, primitives};
use crate::clients::Target;

/// For a terminal.
pub(super) fn text(report: &Report) -> String {
    sections(report, presets::UTF8_FULL_CONDENSED)
}

/// For a file, with what is needed to make it again.
pub(super) fn markdown(report: &Report) -> String {
    format!(
        "# Benchmarks\n\nMade by `{}` (the programs of version {} beside it) at {} on {}.{} Figures are medians over \
         the rounds, which went over all systems in turns. CPU, bytes and syncs are sums over all server processes; \
         the load ran on the same machine and used the CPU in the column `load`. Written bytes are whole pages, as \
         the kernel counts them.\n\n![Rates, latencies and CPU](results.svg)\n\n{}",
        report.command,
        report.version,
        report.made_at,
        report.machine,
        report.servers.iter().map(|server| format!(" {}.", server.trim())).collect::<String>(),
        sections(report, presets::ASCII_MARKDOWN)
    )
}

fn sections(report: &Report, preset: &str) -> String {
    let summaries = report.summaries();
    let mut text = String::new();
    let mut add = |title: &str, table: Table| {
        text += &format!("## {title}\n\n{table}\n\n");
    };
    if !summaries.is_empty() {
        add("Measurements", measurements(&summaries, preset));
    }
    if summaries.iter().any(|summary| !summary.target().is_holdfast()) {
        add("Comparison with peers in the same run", ratios(&summaries, preset));
    }
    if summaries.iter().any(|summary| summary.first.beside.is_some()) {
        add("Permits beside locks in the same run", primitives::permits(&summaries, preset));
    }
    if report.holds.is_some() {
        add("Many holds", holds(report, preset));
    }
    if !report.idle.is_empty() {
        add("Idle", idle(report, preset));
    }
    if report.growth.is_some() {
        add("Growth, pairs through the stream", growth(report, preset));
    }
    if report.failover.is_some() {
        add("Failover", failover(report, preset));
    }
    if report.watchers.is_some() {
        add("Watch fan-out", watchers(report, preset));
    }
    if report.latch_waiters.is_some() {
        add("Many who wait for a latch", primitives::latch_waiters(report, preset));
    }
    if report.rebuild.is_some() {
        add("The next leader of a lock table in memory", primitives::rebuild(report, preset));
    }
    if report.neighbours.is_some() {
        add("A quiet tenant beside a loud one", noisy_neighbour(report, preset));
    }
    if report.overload.is_some() {
        add("Overload", overload(report, preset));
    }
    text
}

pub(super) fn table(preset: &str, header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(preset).set_header(header);
    table
}

fn measurements(summaries: &[Summary], preset: &str) -> Table {
    let header = [
        "work",
        "clients",
        "namespaces",
        "system",
        "ops/s",
        "(lowest, highest)",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "CPU µs/op",
        "load",
        "written B/op",
        "stored B/op",
        "syncs/op",
        "RSS MiB",
        "failed",
    ];
    let mut table = table(preset, &header);
    for summary in summaries {
        let optional = |value: Option<f64>, digits| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.digits$}"));
        let (lowest, highest) = summary.rate_range;
        let failed = match summary.unserved {
            0 => summary.errors.to_string(),
            unserved => format!("{}, {unserved} not begun", summary.errors),
        };
        table.add_row([
            workload_label(summary),
            summary.first.clients.to_string(),
            summary.first.namespaces.to_string(),
            summary.first.system(),
            format!("{:.0}", summary.rate),
            format!("{lowest:.0}, {highest:.0}"),
            format!("{:.0}", summary.latency.p50_us),
            format!("{:.0}", summary.latency.p99_us),
            format!("{:.0}", summary.latency.p999_us),
            format!("{:.0}", summary.server_cpu_us),
            format!("{:.0}", summary.load_cpu_us),
            format!("{:.0}", summary.written_bytes),
            optional(summary.stored_bytes, 0),
            optional(summary.syncs, 2),
            format!("{:.0}", summary.rss_mib),
            failed,
        ]);
    }
    align(table, &[0, 3])
}

/// What is done, with the phase whose latency is shown.
fn workload_label(summary: &Summary) -> String {
    let first = &summary.first;
    let due = first.due_per_second.map(|due| format!(", {due:.0}/s due")).unwrap_or_default();
    if first.workload == first.main_phase {
        format!("{}{due}", first.workload)
    } else {
        format!("{}{due} (latency: {})", first.workload, first.main_phase)
    }
}

fn ratios(summaries: &[Summary], preset: &str) -> Table {
    let header = ["work", "clients", "namespaces", "this", "beside", "rate", "p50", "p99", "CPU/op"];
    let mut table = table(preset, &header);
    for own in summaries.iter().filter(|summary| summary.target().is_holdfast()) {
        let durable = (own.target() == Target::Memory).then_some(Target::Stream);
        for peer in durable.into_iter().chain([Target::Etcd, Target::Redis, Target::RedisMemory]) {
            let found = summaries.iter().find(|other| other.target() == peer && other.is_same_work(own));
            let Some(peer) = found else { continue };
            let ratio = |one: f64, other: f64| if other > 0.0 { format!("{:.2} x", one / other) } else { "-".into() };
            table.add_row([
                workload_label(own),
                own.first.clients.to_string(),
                own.first.namespaces.to_string(),
                own.first.system(),
                peer.first.system(),
                ratio(own.rate, peer.rate),
                ratio(own.latency.p50_us, peer.latency.p50_us),
                ratio(own.latency.p99_us, peer.latency.p99_us),
                ratio(own.server_cpu_us, peer.server_cpu_us),
            ]);
        }
    }
    align(table, &[0, 3, 4])
}

fn holds(report: &Report, preset: &str) -> Table {
    let header = [
        "holds",
        "grants/s",
        "acquire p50 µs",
        "p99 µs",
        "p99.9 µs",
        "longest µs",
        "RSS MiB/node before",
        "with all",
        "bytes/hold",
        "data MiB/node",
        "snapshots s",
        "their MiB",
        "restart after kill s",
        "after stop s",
    ];
    let mut table = table(preset, &header);
    if let Some(holds) = &report.holds {
        table.add_row([
            holds.holds.to_string(),
            format!("{:.0}", holds.rate),
            format!("{:.0}", holds.acquire.p50_us),
            format!("{:.0}", holds.acquire.p99_us),
            format!("{:.0}", holds.acquire.p999_us),
            format!("{:.0}", holds.acquire.max_us),
            format!("{:.0}", holds.rss_mib_before),
            format!("{:.0}", holds.rss_mib),
            format!("{:.0}", holds.bytes_per_hold),
            format!("{:.1}", holds.data_mib),
            format!("{:.2}", holds.snapshots_seconds),
            format!("{:.1}", holds.snapshots_mib),
            format!("{:.2}", holds.restart_after_kill_seconds),
            format!("{:.2}", holds.restart_after_stop_seconds),
        ]);
    }
    align(table, &[])
}

fn growth(report: &Report, preset: &str) -> Table {
    let header = ["what grows", "size", "clients", "pairs/s", "CPU µs/pair", "acquire p50 µs", "p99 µs"];
    let mut table = table(preset, &header);
    if let Some(growth) = &report.growth {
        let shards = growth.shards.iter().map(|step| ("shards busy", step));
        let spread = growth.spread.iter().map(|step| ("shards, the same clients", step));
        let holds = growth.holds.iter().map(|step| ("locks held", step));
        for (what, step) in shards.chain(spread).chain(holds) {
            table.add_row([
                what.to_owned(),
                step.size.to_string(),
                step.clients.to_string(),
                format!("{:.0}", step.rate),
                format!("{:.0}", step.server_cpu_us),
                format!("{:.0}", step.acquire.p50_us),
                format!("{:.0}", step.acquire.p99_us),
            ]);
        }
    }
    align(table, &[0])
}

fn failover(report: &Report, preset: &str) -> Table {
    let header = ["killed nodes", "measured", "samples", "p50 ms", "p99 ms", "longest ms", "failed calls"];
    let mut table = table(preset, &header);
    if let Some(failover) = &report.failover {
        let rows = [
            ("each shard", failover.samples, failover.shards),
            ("last shard of a node", failover.kills as u64, failover.whole_node),
        ];
        for (measured, samples, quantiles) in rows {
            table.add_row([
                failover.kills.to_string(),
                measured.to_owned(),
                samples.to_string(),
                format!("{:.0}", quantiles.p50_us / 1_000.0),
                format!("{:.0}", quantiles.p99_us / 1_000.0),
                format!("{:.0}", quantiles.max_us / 1_000.0),
                failover.failed_calls.to_string(),
            ]);
        }
    }
    align(table, &[1])
}

fn idle(report: &Report, preset: &str) -> Table {
    let header =
        ["system", "groups on each node", "CPU of three nodes, % of a core", "CPU of the gateway, %", "RSS MiB/node"];
    let mut table = table(preset, &header);
    for idle in &report.idle {
        table.add_row([
            idle.system.clone(),
            idle.groups.to_string(),
            format!("{:.1}", idle.nodes_cpu_percent),
            idle.gateway_cpu_percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1}")),
            format!("{:.0}", idle.rss_mib),
        ]);
    }
    align(table, &[0])
}

fn watchers(report: &Report, preset: &str) -> Table {
    let header =
        ["watchers", "events", "all heard p50 ms", "p99 ms", "longest ms", "delivered/s", "server CPU µs each"];
    let mut table = table(preset, &header);
    if let Some(watchers) = &report.watchers {
        let heard = watchers.all_heard;
        table.add_row([
            watchers.watchers.to_string(),
            watchers.events.to_string(),
            format!("{:.1}", heard.p50_us / 1_000.0),
            format!("{:.1}", heard.p99_us / 1_000.0),
            format!("{:.1}", heard.max_us / 1_000.0),
            format!("{:.0}", watchers.delivered_per_second),
            format!("{:.1}", watchers.server_cpu_us),
        ]);
    }
    align(table, &[])
}

fn noisy_neighbour(report: &Report, preset: &str) -> Table {
    let header = [
        "loud: limit/s",
        "pairs/s",
        "refused/s",
        "waiting",
        "slow readers",
        "quiet: p50 ms alone",
        "beside",
        "p99 ms alone",
        "beside",
        "p99 ratio",
        "failed",
    ];
    let mut table = table(preset, &header);
    if let Some(seen) = &report.neighbours {
        let ms = |us: f64| format!("{:.2}", us / 1_000.0);
        table.add_row([
            seen.limit.to_string(),
            format!("{:.0}", seen.served_per_second),
            format!("{:.0}", seen.refused_per_second),
            seen.waiting.to_string(),
            seen.slow_readers.to_string(),
            ms(seen.alone.p50_us),
            ms(seen.beside.p50_us),
            ms(seen.alone.p99_us),
            ms(seen.beside.p99_us),
            format!("{:.2} x", seen.beside.p99_us / seen.alone.p99_us),
            seen.failed.to_string(),
        ]);
    }
    align(table, &[])
}

fn overload(report: &Report, preset: &str) -> Table {
    let header = [
        "best with clients",
        "pairs/s",
        "clients",
        "goodput pairs/s",
        "of the peak",
        "late/s",
        "shed/s",
        "failed otherwise",
    ];
    let mut table = table(preset, &header);
    if let Some(seen) = &report.overload {
        table.add_row([
            seen.best_clients.to_string(),
            format!("{:.0}", seen.peak_per_second),
            seen.clients.to_string(),
            format!("{:.0}", seen.goodput_per_second),
            format!("{:.0} % ({})", 100.0 * seen.share_of_peak(), seen.verdict()),
            format!("{:.0}", seen.late_per_second),
            format!("{:.0}", seen.shed_per_second),
            seen.failed.to_string(),
        ]);
    }
    align(table, &[])
}

/// Numbers are aligned to the right; the named columns contain words.
pub(super) fn align(mut table: Table, words: &[usize]) -> Table {
    for (at, column) in table.column_iter_mut().enumerate() {
        let alignment = if words.contains(&at) { CellAlignment::Left } else { CellAlignment::Right };
        column.set_cell_alignment(alignment);
    }
    table
}
