//! The picture of growth: CPU of an operation over the shards that are busy, over the shards that the same clients are
//! spread over, and over the locks that are held.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::Report;
use super::chart::{Area, label};
use crate::scenarios::Step;

const CHART_SIZE: (u32, u32) = (1_280, 480);
const FOOTER_HEIGHT: u32 = 52;

/// Draws it; nothing when growth was not measured.
pub(super) fn svg(report: &Report) -> Result<Option<String>> {
    let Some(growth) = &report.growth else { return Ok(None) };
    let mut text = String::new();
    let draw = |text: &mut String| -> Result<(), String> {
        let root = SVGBackend::with_string(text, CHART_SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(|error| error.to_string())?;
        let (plots, foot) = root.split_vertically(CHART_SIZE.1 - FOOTER_HEIGHT);
        let charts = [
            ("shards busy, 16 clients each", &growth.shards),
            ("shards, 256 clients in all", &growth.spread),
            ("locks held, 64 clients", &growth.holds),
        ];
        for (area, (what, steps)) in plots.split_evenly((1, charts.len())).iter().zip(charts) {
            chart(area, what, steps)?;
        }
        let lines = [format!("{} · {}", report.machine, report.made_at), report.command.clone()];
        for (line, top) in lines.into_iter().zip([4, 24]) {
            foot.draw(&Text::new(line, (12, top), ("sans-serif", 15))).map_err(|error| error.to_string())?;
        }
        root.present().map_err(|error| error.to_string())
    };
    draw(&mut text).map_err(|error| anyhow!("the picture of growth can't be drawn: {error}"))?;
    Ok(Some(text))
}

fn chart(area: &Area<'_>, what: &str, steps: &[Step]) -> Result<(), String> {
    let points: Vec<(f64, f64)> = steps.iter().map(|step| (step.size as f64, step.server_cpu_us)).collect();
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Ok(()) };
    let sizes = points.iter().map(|point| point.0).collect::<Vec<_>>();
    let high = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption("server CPU of a pair through the stream, µs", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d((first.0 * 0.9..last.0 * 1.1).log_scale().with_key_points(sizes), 0.0..high * 1.3)
        .map_err(|error| error.to_string())?;
    let mut mesh = chart.configure_mesh();
    mesh.max_light_lines(1).x_desc(what).x_label_formatter(&label).draw().map_err(|error| error.to_string())?;
    let line = LineSeries::new(points, RGBColor(31, 119, 180).stroke_width(2)).point_size(4);
    chart.draw_series(line).map_err(|error| error.to_string())?;
    Ok(())
}
