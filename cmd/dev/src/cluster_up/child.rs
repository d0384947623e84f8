//! One child process: starts, supervises and stops it.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child as Process, Command};
use tokio::sync::watch;
use tokio::time::timeout;

use super::log::ProcessLog;

/// Timeout for the last lines of a process.
const LAST_LINES_TIMEOUT: Duration = Duration::from_secs(1);

/// A command to a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChildCommand {
    Run,
    Terminate,
    Kill,
}

/// A child process. It ends at the latest with this program, for whatever reason that ends.
pub(super) struct Child {
    pub(super) name: String,
    /// The address of its `/readyz`.
    pub(super) address: String,
    command: watch::Sender<ChildCommand>,
    has_ended: watch::Receiver<bool>,
}

impl Child {
    /// Starts a process whose output goes to the log.
    pub(super) fn start(
        name: &str,
        address: &str,
        program: &Path,
        arguments: &[&OsStr],
        log: ProcessLog,
    ) -> Result<Self> {
        let process = Command::new(program)
            .args(arguments)
            // The other end of this pipe is never written to. The system closes it when this program ends, even by
            // SIGKILL, and the child then stops.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C at the terminal goes to a whole process group; the children are stopped in order instead.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{name}: can't start {}", program.display()))?;
        let (command, orders) = watch::channel(ChildCommand::Run);
        let (ended, has_ended) = watch::channel(false);
        let of = name.to_owned();
        tokio::spawn(async move {
            supervise(&of, process, orders, log).await;
            ended.send_replace(true);
        });
        Ok(Self { name: name.to_owned(), address: address.to_owned(), command, has_ended })
    }

    /// Sends a command; does nothing if the child has ended.
    pub(super) fn send_command(&self, order: ChildCommand) {
        self.command.send_replace(order);
    }

    pub(super) fn is_running(&self) -> bool {
        !*self.has_ended.borrow()
    }

    /// Waits for its end.
    pub(super) async fn ended(&self) {
        // An error means that the supervising task is gone, and with it the child.
        let _ = self.has_ended.clone().wait_for(|ended| *ended).await;
    }
}

/// Supervises a process until it has ended and its last line is in the log.
async fn supervise(name: &str, mut process: Process, mut orders: watch::Receiver<ChildCommand>, log: ProcessLog) {
    let stdin = process.stdin.take();
    let output = process.stdout.take().map(|output| tokio::spawn(log.clone().copy(output)));
    let errors = process.stderr.take().map(|errors| tokio::spawn(log.clone().copy(errors)));
    let status = loop {
        tokio::select! {
            status = process.wait() => break status,
            order = next_command(&mut orders) => match order {
                ChildCommand::Run => {}
                ChildCommand::Terminate => terminate(&process),
                ChildCommand::Kill => {
                    // This can fail only for a process that has just ended, and the wait covers that.
                    let _ = process.start_kill();
                    break process.wait().await;
                }
            },
        }
    };
    drop(stdin);
    for copying in [output, errors].into_iter().flatten() {
        // A process that the child left behind may hold the pipe open.
        let _ = timeout(LAST_LINES_TIMEOUT, copying).await;
    }
    let order = *orders.borrow();
    log.write_line(exit_report(name, order, status)).await;
}

/// Waits for the next command. If no sender is left, the child must stop.
async fn next_command(orders: &mut watch::Receiver<ChildCommand>) -> ChildCommand {
    match orders.changed().await {
        Ok(()) => *orders.borrow_and_update(),
        Err(_) => ChildCommand::Kill,
    }
}

fn terminate(process: &Process) {
    // The id belongs to the child until its end is observed, which has not happened yet.
    if let Some(pid) = process.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        // This can fail only for a process that has just ended, which is observed at once.
        let _ = kill_process(pid, Signal::TERM);
    }
}

fn exit_report(name: &str, order: ChildCommand, status: std::io::Result<ExitStatus>) -> String {
    match (order, status) {
        (_, Err(error)) => format!("{name} is lost: its end can't be waited for: {error}"),
        (ChildCommand::Run, Ok(status)) => format!("{name} HAS ENDED by itself ({status}); it is not started again"),
        (_, Ok(status)) if status.success() => format!("{name} has stopped"),
        (_, Ok(status)) => format!("{name} has stopped ({status})"),
    }
}
