//! The picture: rate, latency and CPU of uncontended pairs over the number of clients.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::{Report, Summary};
use crate::clients::Target;
use crate::workloads::Kind;

const CHART_SIZE: (u32, u32) = (1_280, 960);
const FOOTER_HEIGHT: u32 = 84;
/// Characters of a line below the plots.
const FOOTER_LINE_CHARS: usize = 160;

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One of the four plots.
struct Plot {
    title: &'static str,
    /// Where the lines leave room for it.
    has_legend: bool,
    value: fn(&Summary) -> f64,
}

const PLOTS: [Plot; 4] = [
    Plot { title: "acquire + release, pairs a second", has_legend: false, value: |summary| summary.rate },
    Plot { title: "server CPU for a pair, µs", has_legend: true, value: |summary| summary.server_cpu_us },
    Plot { title: "acquire, p50, ms", has_legend: false, value: |summary| summary.latency.p50_us / 1_000.0 },
    Plot { title: "acquire, p99, ms", has_legend: false, value: |summary| summary.latency.p99_us / 1_000.0 },
];

/// Draws it; nothing when no pairs were measured over more than one number of clients.
pub(super) fn svg(report: &Report) -> Result<Option<String>> {
    let is_shown =
        |summary: &Summary| summary.first.workload == Kind::Pairs.name() && summary.first.due_per_second.is_none();
    let summaries: Vec<Summary> = report.summaries().into_iter().filter(is_shown).collect();
    let most = summaries.iter().map(|summary| summary.first.namespaces).max().unwrap_or_default();
    let summaries: Vec<Summary> = summaries.into_iter().filter(|s| s.first.namespaces == most).collect();
    let counts: std::collections::BTreeSet<usize> = summaries.iter().map(|summary| summary.first.clients).collect();
    if counts.len() < 2 {
        return Ok(None);
    }
    let mut text = String::new();
    draw(report, &summaries, &mut text).map_err(|error| anyhow!("the picture can't be drawn: {error}"))?;
    Ok(Some(text))
}

fn draw(report: &Report, summaries: &[Summary], text: &mut String) -> Result<(), String> {
    let root = SVGBackend::with_string(text, CHART_SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(|error| error.to_string())?;
    let (plots, foot) = root.split_vertically(CHART_SIZE.1 - FOOTER_HEIGHT);
    for (area, plot) in plots.split_evenly((2, 2)).iter().zip(&PLOTS) {
        chart(area, plot, summaries)?;
    }
    let mut lines = vec![format!("{} · {} · {}", report.machine, report.made_at, report.servers.join(", "))];
    let command = format!("{} (medians of interleaved rounds, logarithmic scales)", report.command);
    lines.extend(wrap(&command));
    for (line, at) in lines.iter().zip((4..).step_by(24)) {
        let drawn = foot.draw(&Text::new(line.clone(), (12, at), ("sans-serif", 15)));
        drawn.map_err(|error| error.to_string())?;
    }
    root.present().map_err(|error| error.to_string())
}

fn chart(area: &Area<'_>, plot: &Plot, summaries: &[Summary]) -> Result<(), String> {
    let say = |error: &dyn std::fmt::Display| error.to_string();
    let values = summaries.iter().map(|summary| (plot.value)(summary)).filter(|value| *value > 0.0);
    let (low, high) = (values.clone().fold(f64::INFINITY, f64::min), values.fold(0.0, f64::max));
    if !low.is_finite() || high <= 0.0 {
        return Ok(());
    }
    let clients = summaries.iter().map(|summary| summary.first.clients as f64);
    let most = clients.fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(plot.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(32)
        .y_label_area_size(64)
        .build_cartesian_2d((0.9..most * 1.1).log_scale(), (low / 1.5..high * 1.5).log_scale())
        .map_err(|error| say(&error))?;
    let mut mesh = chart.configure_mesh();
    let mesh = mesh.max_light_lines(1).x_desc("clients").x_label_formatter(&label).y_label_formatter(&label).draw();
    mesh.map_err(|error| say(&error))?;
    for (door, colour) in [
        (Target::Rest, RGBColor(31, 119, 180)),
        (Target::Grpc, RGBColor(23, 160, 120)),
        (Target::Stream, RGBColor(255, 150, 30)),
        (Target::Memory, RGBColor(188, 120, 20)),
        (Target::Etcd, RGBColor(214, 39, 40)),
        (Target::Redis, RGBColor(148, 103, 189)),
        (Target::RedisMemory, RGBColor(90, 60, 120)),
    ] {
        let of_door: Vec<&Summary> = summaries.iter().filter(|summary| summary.target() == door).collect();
        let Some(system) = of_door.first().map(|summary| summary.first.system()) else { continue };
        let points = of_door.iter().map(|s| (s.first.clients as f64, (plot.value)(s)));
        let line = LineSeries::new(points, colour.stroke_width(2)).point_size(4);
        let series = chart.draw_series(line).map_err(|error| say(&error))?;
        series.label(system).legend(move |(x, y)| Rectangle::new([(x, y - 2), (x + 16, y + 2)], colour.filled()));
    }
    if !plot.has_legend {
        return Ok(());
    }
    let mut legend = chart.configure_series_labels();
    legend.position(SeriesLabelPosition::UpperRight).background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3));
    legend.draw().map_err(|error| say(&error))
}

/// At spaces.
fn wrap(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() <= FOOTER_LINE_CHARS => line.push_str(word),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

pub(super) fn label(value: &f64) -> String {
    if *value >= 10.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}").trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}
