//! One child process: starts, supervises and stops it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
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
    /// Kill the process. `Run` then starts another.
    Crash,
    Terminate,
    Kill,
}

/// What a child is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChildState {
    Running,
    /// Its process, which had this id, was killed by `Crash`.
    Crashed(u32),
    Ended,
}

/// A child process. It ends at the latest with this program, for whatever reason that ends.
pub(super) struct Child {
    pub(super) name: String,
    /// The address of its `/readyz`.
    pub(super) address: String,
    command: watch::Sender<ChildCommand>,
    state: watch::Receiver<ChildState>,
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
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let launch = Launch { name: name.to_owned(), program: program.to_owned(), arguments };
        let process = launch.spawn()?;
        let (command, orders) = watch::channel(ChildCommand::Run);
        let (state_sender, state) = watch::channel(ChildState::Running);
        tokio::spawn(supervise(launch, process, orders, state_sender, log));
        Ok(Self { name: name.to_owned(), address: address.to_owned(), command, state })
    }

    /// Sends a command; does nothing if the child has ended.
    pub(super) fn send_command(&self, order: ChildCommand) {
        self.command.send_replace(order);
    }

    /// Kills the process and waits until it is gone. Returns the id that it had, or `None` if it had ended before.
    pub(super) async fn crash(&self) -> Option<u32> {
        self.send_command(ChildCommand::Crash);
        let mut state = self.state.clone();
        match state.wait_for(|state| *state != ChildState::Running).await.map(|state| *state) {
            Ok(ChildState::Crashed(pid)) => Some(pid),
            _ => None,
        }
    }

    /// Starts another process after a crash.
    pub(super) async fn restart(&self) {
        self.send_command(ChildCommand::Run);
        // An error means that the supervising task is gone, and with it the child.
        let _ = self.state.clone().wait_for(|state| !matches!(state, ChildState::Crashed(_))).await;
    }

    /// Returns whether it has not ended for good.
    pub(super) fn is_running(&self) -> bool {
        *self.state.borrow() != ChildState::Ended
    }

    /// Waits for its end. A crash is none.
    pub(super) async fn ended(&self) {
        // An error means that the supervising task is gone, and with it the child.
        let _ = self.state.clone().wait_for(|state| *state == ChildState::Ended).await;
    }
}

/// How a child's process is started.
struct Launch {
    name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Launch {
    fn spawn(&self) -> Result<Process> {
        Command::new(&self.program)
            .args(&self.arguments)
            // The other end of this pipe is never written to. The system closes it when this program ends, even by
            // SIGKILL, and the child then stops.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C at the terminal goes to a whole process group; the children are stopped in order instead.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{}: can't start {}", self.name, self.program.display()))
    }
}

/// Supervises a child until it has ended for good.
async fn supervise(
    launch: Launch,
    mut process: Process,
    mut orders: watch::Receiver<ChildCommand>,
    state: watch::Sender<ChildState>,
    log: ProcessLog,
) {
    loop {
        // It has an id until its end is observed.
        let pid = process.id().unwrap_or_default();
        let order = supervise_process(&launch.name, process, &mut orders, &log).await;
        if order != ChildCommand::Crash {
            break;
        }
        state.send_replace(ChildState::Crashed(pid));
        if !is_restarted(&mut orders).await {
            break;
        }
        process = match launch.spawn() {
            Ok(process) => process,
            Err(error) => {
                log.write_line(format!("{} is NOT started again: {error:#}", launch.name)).await;
                break;
            }
        };
        log.write_line(format!("{} is started again", launch.name)).await;
        state.send_replace(ChildState::Running);
    }
    state.send_replace(ChildState::Ended);
}

/// Supervises a process until it has ended and its last line is in the log. Returns the last command.
async fn supervise_process(
    name: &str,
    mut process: Process,
    orders: &mut watch::Receiver<ChildCommand>,
    log: &ProcessLog,
) -> ChildCommand {
    let stdin = process.stdin.take();
    let output = process.stdout.take().map(|output| tokio::spawn(log.clone().copy(output)));
    let errors = process.stderr.take().map(|errors| tokio::spawn(log.clone().copy(errors)));
    let status = loop {
        tokio::select! {
            status = process.wait() => break status,
            order = next_command(orders) => match order {
                ChildCommand::Run => {}
                ChildCommand::Terminate => terminate(&process),
                ChildCommand::Kill | ChildCommand::Crash => {
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
    order
}

/// Waits, after a crash, until the child is to run again, and returns true, or to end.
async fn is_restarted(orders: &mut watch::Receiver<ChildCommand>) -> bool {
    loop {
        match next_command(orders).await {
            ChildCommand::Crash => {}
            order => return order == ChildCommand::Run,
        }
    }
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
        (ChildCommand::Crash, Ok(status)) => {
            format!("{name} was killed ({status}), as a scenario asked; it starts again when that scenario is done")
        }
        (_, Ok(status)) if status.success() => format!("{name} has stopped"),
        (_, Ok(status)) => format!("{name} has stopped ({status})"),
    }
}
