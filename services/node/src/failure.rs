//! Describes failures of a state machine.

use bytes::Bytes;
use holdfast_core::{Command, LocksCommand, NamespaceMessage, NamespaceRef, codec};
use holdfast_replication::{ApplyFailure, ApplyStep, StateMachineError};
use holdfast_supervise::CaughtPanic;

/// Longest text of a command, in bytes.
const MAX_COMMAND_BYTES: usize = 2_048;

/// Describes a panic in the middle of an entry. `in_work` is the namespace that was being changed, if that is known: also
/// one where something was due, or one of several that a command is about.
pub(crate) fn from_panic(
    step: ApplyStep,
    commands: &[Bytes],
    in_work: Option<NamespaceRef>,
    panicked: CaughtPanic,
) -> ApplyFailure {
    let (of_command, command) = describe_step(step, commands);
    let namespace = in_work.map_or(of_command, |namespace| namespace.to_string());
    ApplyFailure { step, namespace, command, message: panicked.to_string(), backtrace: panicked.backtrace }
}

/// Describes a step that ended the process, which no handler catches.
pub(crate) fn from_process_end(step: ApplyStep, commands: &[Bytes]) -> ApplyFailure {
    let (namespace, command) = describe_step(step, commands);
    let message = "the process ended while it was applied, at several starts".to_owned();
    ApplyFailure { step, namespace, command, message, backtrace: String::new() }
}

/// Returns the namespace of the command of a step, and the command as text.
fn describe_step(step: ApplyStep, commands: &[Bytes]) -> (String, String) {
    match step {
        ApplyStep::Expiry => Default::default(),
        ApplyStep::Command(number) => commands.get(number as usize).map(|bytes| describe(bytes)).unwrap_or_default(),
    }
}

/// Describes a command that can't be decoded.
pub(crate) fn from_undecodable(number: u32, bytes: &[u8], error: StateMachineError) -> ApplyFailure {
    let (namespace, command) = describe(bytes);
    ApplyFailure { step: ApplyStep::Command(number), namespace, command, message: error.0, backtrace: String::new() }
}

/// Describes a state machine that failed earlier.
pub(crate) fn already_failed() -> ApplyFailure {
    let (namespace, command, backtrace) = Default::default();
    ApplyFailure {
        step: ApplyStep::Expiry,
        namespace,
        command,
        message: "there is no state any more".into(),
        backtrace,
    }
}

/// Returns the namespace of a command, and the command as text.
fn describe(bytes: &[u8]) -> (String, String) {
    let Ok(command) = codec::decode::<Command>(bytes) else {
        return (String::new(), format!("{} bytes that can't be read", bytes.len()));
    };
    let namespace = match command.inner() {
        Command::Locks(command) => namespace_of(command).map(ToString::to_string).unwrap_or_default(),
        _ => String::new(),
    };
    let mut text = format!("{command:?}");
    if text.len() > MAX_COMMAND_BYTES {
        let end = (0..=MAX_COMMAND_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    (namespace, text)
}

fn namespace_of(command: &LocksCommand) -> Option<&NamespaceRef> {
    match command {
        LocksCommand::Deliver { message, .. } => match message {
            NamespaceMessage::Open { namespace, .. }
            | NamespaceMessage::Open2 { namespace, .. }
            | NamespaceMessage::Open3 { namespace, .. }
            | NamespaceMessage::Purge { namespace } => Some(namespace),
            NamespaceMessage::PurgeAccount { .. } => None,
        },
        LocksCommand::Acquire(acquire) => Some(&acquire.namespace),
        LocksCommand::Release(release) => Some(&release.namespace),
        LocksCommand::Delete { namespace, .. } | LocksCommand::CloseSession { namespace, .. } => Some(namespace),
        LocksCommand::Cancel(cancel) => Some(&cancel.namespace),
        LocksCommand::Reset(reset) => Some(&reset.namespace),
        LocksCommand::OpenSession(open) => Some(&open.namespace),
        LocksCommand::LockInfo(info) | LocksCommand::LockInfoPart(info) => Some(&info.namespace),
        LocksCommand::Batch(commands) => commands.iter().find_map(namespace_of),
        LocksCommand::Latch(command) => Some(command.namespace()),
        LocksCommand::Permit(command) => Some(command.namespace()),
        LocksCommand::Condition(command) => Some(command.namespace()),
        LocksCommand::Table(command) => command.namespace(),
        LocksCommand::ReportPermits(report) => Some(&report.namespace),
        LocksCommand::AcquireAtLeast(acquire) => Some(&acquire.acquire.namespace),
        LocksCommand::AskRelease(ask) => Some(&ask.namespace),
        LocksCommand::Barrier(command) => Some(command.namespace()),
        LocksCommand::Reattach(reattach) => Some(&reattach.acquire.namespace),
        LocksCommand::CancelAttempts(several) => Some(&several.cancel.namespace),
        // The number of a session stands for its namespace.
        LocksCommand::ExpireSessions { .. } | LocksCommand::Session(_) => None,
    }
}
