//! Results: tables, JSON, and a picture.

mod chart;
mod growth;
mod machine;
mod measurement;
mod primitives;
mod summary;
mod table;

use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::scenarios::{Failover, Growth, Holds, Idle, LatchWaiters, NoisyNeighbour, Overload, Rebuild, Watchers};

pub use machine::Machine;
pub use measurement::{Measurement, Quantiles};
pub use summary::Summary;

/// Everything that a run found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// When it began, in UTC.
    pub made_at: String,
    /// The command that makes it again.
    pub command: String,
    /// Version of this service, and the commit of the checkout that it was measured in.
    pub version: String,
    /// Versions of the peers.
    pub servers: Vec<String>,
    /// Where it ran.
    pub machine: Machine,
    /// Every measurement of every round.
    pub measurements: Vec<Measurement>,
    /// Many holds at once.
    pub holds: Option<Holds>,
    /// Nothing to do.
    pub idle: Vec<Idle>,
    /// Killed nodes.
    pub failover: Option<Failover>,
    /// More shards, more holds.
    pub growth: Option<Growth>,
    /// Watch fan-out.
    pub watchers: Option<Watchers>,
    /// Many who wait for one latch.
    pub latch_waiters: Option<LatchWaiters>,
    /// Leaders of lock tables in memory are killed.
    pub rebuild: Option<Rebuild>,
    /// A quiet tenant beside a loud one.
    pub neighbours: Option<NoisyNeighbour>,
    /// More than the service can do.
    pub overload: Option<Overload>,
}

impl Report {
    /// An empty report of this machine.
    pub fn new(machine: Machine) -> Self {
        let now = time::OffsetDateTime::now_utc();
        let made_at = now.replace_nanosecond(0).unwrap_or(now);
        let made_at = made_at.format(&time::format_description::well_known::Rfc3339).unwrap_or_default();
        // The program is named without its folder: the command is for others too.
        let arguments = std::env::args().skip(1);
        let command = ["holdfast-bench".to_owned()].into_iter().chain(arguments).collect::<Vec<_>>().join(" ");
        Self {
            made_at,
            command,
            version: version(),
            servers: Vec::new(),
            machine,
            measurements: Vec::new(),
            holds: None,
            idle: Vec::new(),
            failover: None,
            growth: None,
            watchers: None,
            latch_waiters: None,
            rebuild: None,
            neighbours: None,
            overload: None,
        }
    }

    /// Medians over the rounds, in the order in which they were measured.
    pub fn summaries(&self) -> Vec<Summary> {
        summary::summarize(&self.measurements)
    }

    /// The tables, for a terminal and for Markdown.
    pub fn to_text(&self) -> String {
        table::text(self)
    }

    /// Writes `results.md`, `results.json`, `results.svg` and `growth.svg`.
    ///
    /// # Errors
    /// When the folder can't be written.
    pub fn write(&self, out: &Path) -> Result<()> {
        std::fs::create_dir_all(out)?;
        std::fs::write(out.join("results.md"), table::markdown(self))?;
        let mut json = serde_json::to_string_pretty(self)?;
        json.push('\n');
        std::fs::write(out.join("results.json"), json)?;
        if let Some(svg) = growth::svg(self)? {
            std::fs::write(out.join("growth.svg"), svg)?;
        }
        if let Some(svg) = chart::svg(self)? {
            std::fs::write(out.join("results.svg"), svg)?;
        }
        Ok(())
    }
}

fn version() -> String {
    let commit = std::process::Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let commit = commit.ok().filter(|said| said.status.success()).and_then(|said| String::from_utf8(said.stdout).ok());
    let commit = commit.map(|commit| format!(" at {}", commit.trim()));
    format!("{}{}", env!("CARGO_PKG_VERSION"), commit.unwrap_or_default())
}
