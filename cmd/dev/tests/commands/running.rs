//! How the tests start programs while other tests write some.

use std::process::{Output, Stdio};
use std::sync::{Mutex, PoisonError};

use tokio::process::Command;

/// Held while programs are written and while processes are started: a process forked in between would keep a program
/// open for writing, which then can't be run.
static FORK_LOCK: Mutex<()> = Mutex::new(());

pub(crate) fn with_fork_lock<T>(start: impl FnOnce() -> T) -> T {
    let _guard = FORK_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    start()
}

/// Runs a program to its end, without input.
pub(crate) async fn output(mut command: Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    with_fork_lock(|| command.spawn().unwrap()).wait_with_output().await.unwrap()
}

/// The same for tests without a runtime.
pub(crate) fn blocking_output(mut command: std::process::Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    with_fork_lock(|| command.spawn().unwrap()).wait_with_output().unwrap()
}
