//! A command that runs under a lock, or with permits.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Result;
use holdfast_client::{EndReason, Hold, LossReason, ReleaseRequest};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::Child;
use tokio::time::{Instant, sleep_until};

use super::{GuardedRun, Target, supervisor};
use crate::output::Format;
use crate::signals::{Signals, is_sent_by_terminals};

/// The command is asked to stop when this fraction of the time to live is left.
const STOP_MARGIN_DIVISOR: u32 = 3;
/// Time for the command to stop after the lock was lost without warning.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
const SIGNAL_EXIT_BASE: i32 = 128;

/// A command, until it has ended.
pub(super) struct SupervisedChild {
    child: Child,
    pid: Pid,
    /// Whether the command leads a process group. At a terminal it shares this program's group, so that it can read
    /// from the terminal and Ctrl-Z stops both.
    leads_group: bool,
    /// What it runs under, for messages.
    what: &'static str,
}

/// How far the command has been stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopPhase {
    Running,
    /// It was asked to stop. It is killed when the hold ends.
    Told,
    /// It was asked to stop, and is killed at this instant.
    KillAt(Instant),
    Killed,
}

impl SupervisedChild {
    /// Starts the command, which is told the members of a pool that it has.
    pub(super) fn start(
        program: &OsStr,
        arguments: &[OsString],
        (hold, members): (&Hold, Option<&[String]>),
        target: &Target,
    ) -> io::Result<Self> {
        let leads_group = !io::stdin().is_terminal();
        let mut command = supervisor::supervised_command(program, arguments);
        command.kill_on_drop(true);
        command.env("HOLDFAST_FENCING_TOKEN", hold.fencing_token().to_string());
        let what = match target {
            Target::Lock { path, .. } | Target::Signalled { path, .. } => {
                command.env("HOLDFAST_LOCK", path.to_string());
                "the lock"
            }
            Target::Permits { .. } | Target::Members { .. } => "the hold",
        };
        if let Some(members) = members {
            command.env("HOLDFAST_MEMBERS", members.join("\n"));
        }
        if leads_group {
            command.process_group(0);
        }
        let child = command.spawn()?;
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let pid = pid.ok_or_else(|| io::Error::other("the command has no number"))?;
        Ok(Self { child, pid, leads_group, what })
    }

    /// Waits for the end of the command. Forwards signals to it, asks it to stop before the lock can be lost, and kills
    /// it if it does not stop.
    pub(super) async fn run(
        mut self,
        format: Format,
        hold: &Hold,
        run: &GuardedRun,
        signals: &mut Signals,
    ) -> Result<u8> {
        let (mut stage, mut is_asked, ttl) = (StopPhase::Running, false, run.ttl);
        let status = loop {
            let deadline = Instant::from_std(hold.deadline());
            let stop_at = deadline.checked_sub(ttl / STOP_MARGIN_DIVISOR).unwrap_or(deadline);
            let is_lost = matches!(stage, StopPhase::Running | StopPhase::Told);
            tokio::select! {
                status = self.child.wait() => break status?,
                signal = signals.next() => {
                    if self.leads_group || !is_sent_by_terminals(signal) {
                        self.signal(signal);
                    }
                }
                request = hold.release_requested(), if !is_asked => {
                    is_asked = true;
                    self.report_asked(format, &request, run.release_signal);
                }
                reason = hold.lost(), if is_lost => match stage {
                    StopPhase::Told => {
                        let what = self.what;
                        format.info(format_args!("the command has not stopped, and {what} ends now: killing it"));
                        stage = self.kill();
                    }
                    _ => {
                        format.info(format_args!("{} is lost: {reason}; stopping the command", self.what));
                        self.signal(Signal::TERM);
                        // After a pause of this process or machine, the command could not be asked to stop in time.
                        let now = Instant::now();
                        let is_late = now >= deadline || reason == LossReason::SessionEnded(EndReason::Unreachable);
                        stage = if is_late { self.kill() } else { StopPhase::KillAt(now + STOP_TIMEOUT) };
                    }
                },
                () = sleep_until(stop_at), if stage == StopPhase::Running => {
                    // The deadline may have advanced during the sleep.
                    let left = Instant::from_std(hold.deadline()).saturating_duration_since(Instant::now());
                    if left <= ttl / STOP_MARGIN_DIVISOR {
                        let what = self.what;
                        format.info(format_args!("no gateway answers, and {what} may be lost in {left:.1?}: \
                            stopping the command"));
                        self.signal(Signal::TERM);
                        stage = StopPhase::Told;
                    }
                }
                () = kill_due(stage) => {
                    format.info("the command has not stopped: killing it");
                    stage = self.kill();
                }
            }
        };
        Ok(exit_code(status))
    }

    /// Reports that somebody asks for the hold, and signals the command if that is wanted.
    fn report_asked(&self, format: Format, request: &ReleaseRequest, release_signal: Option<Signal>) {
        let reason = if request.reason.is_empty() { String::new() } else { format!(": {}", request.reason) };
        format.info(format_args!("{} asks for {}{reason}", request.by, self.what));
        if let Some(signal) = release_signal {
            self.signal(signal);
        }
    }

    fn kill(&self) -> StopPhase {
        self.signal(Signal::KILL);
        StopPhase::Killed
    }

    /// Signals the command, or its whole group if it leads one. The id belongs to the command until its end was
    /// awaited.
    fn signal(&self, signal: Signal) {
        // This can fail only for a process that has just ended, which is observed at once.
        let _ = if self.leads_group { kill_process_group(self.pid, signal) } else { kill_process(self.pid, signal) };
    }
}

async fn kill_due(stage: StopPhase) {
    match stage {
        StopPhase::KillAt(instant) => sleep_until(instant).await,
        _ => std::future::pending().await,
    }
}

/// Returns the exit status as shells report it.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| SIGNAL_EXIT_BASE + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_was_killed_has_the_status_that_shells_give_it() {
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(0)), 0);
    }
}
