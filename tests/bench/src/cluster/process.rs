//! One server process: started, stopped, killed.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::{Child, Command};
use tokio::time::timeout;

const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// A program with its arguments, and the process that runs it now, if one does. The process ends at the latest with
/// this value, and when this program is killed.
pub struct Process {
    name: String,
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    /// A program of this service, which ends when its standard input does.
    pub(crate) fn new_holdfast(name: &str, program: PathBuf, mut arguments: Vec<String>, dir: &Path) -> Self {
        arguments.push("--exit-with-parent".to_owned());
        Self::new(name, program, arguments, dir)
    }

    /// A program of the machine: the system kills it when the thread that started it ends.
    pub(crate) fn new_external(name: &str, program: &Path, arguments: Vec<String>, dir: &Path) -> Result<Self> {
        let setpriv = super::programs::find_installed("setpriv", "util-linux")?;
        let mut all = vec!["--pdeathsig".to_owned(), "KILL".to_owned(), program.display().to_string()];
        all.extend(arguments);
        Ok(Self::new(name, setpriv, all, dir))
    }

    fn new(name: &str, program: PathBuf, arguments: Vec<String>, dir: &Path) -> Self {
        let log = dir.join(format!("{name}.log"));
        Self { name: name.to_owned(), program, arguments, log, child: None }
    }

    /// Its name in the report.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<i32> {
        self.child.as_ref().and_then(Child::id).and_then(|id| i32::try_from(id).ok())
    }

    /// Starts it. Does not wait until it is ready.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn start(&mut self) -> Result<()> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let errors = log.try_clone()?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        // Settings of whoever runs the benchmark are not meant for the servers.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"HOLDFAST_")) {
            command.env_remove(name);
        }
        command.env("NO_COLOR", "1").env("TOKIO_WORKER_THREADS", worker_threads().to_string());
        command.stdin(Stdio::piped()).stdout(log).stderr(errors).kill_on_drop(true);
        self.child = Some(command.spawn().with_context(|| format!("{} can't be started", self.name))?);
        Ok(())
    }

    /// Fails when the process has ended by itself, with the end of its log.
    pub(crate) fn check_running(&mut self) -> Result<()> {
        if let Some(Ok(Some(status))) = self.child.as_mut().map(Child::try_wait) {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(10)..].join("\n");
            bail!("{} has ended by itself ({status}):\n{end}", self.name);
        }
        Ok(())
    }

    /// `kill -9`, and waits until the process is gone.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn kill(&mut self) -> Result<()> {
        let mut child = self.child.take().with_context(|| format!("{} does not run", self.name))?;
        child.start_kill()?;
        child.wait().await?;
        Ok(())
    }

    /// Closes its standard input, which a process of this service takes as the word to stop, and waits for its end.
    ///
    /// # Errors
    /// When it does not run, or does not stop in time.
    pub async fn stop(&mut self) -> Result<()> {
        let mut child = self.child.take().with_context(|| format!("{} does not run", self.name))?;
        drop(child.stdin.take());
        timeout(STOP_TIMEOUT, child.wait()).await.with_context(|| format!("{} does not stop", self.name))??;
        Ok(())
    }
}

/// Threads of a server that serve calls: all servers of a cluster share this machine, and threads that outnumber its
/// processors only wake one another. Whoever runs one process on a machine leaves it at one for each processor.
fn worker_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (processors / (super::NODES + 1)).max(1)
}
