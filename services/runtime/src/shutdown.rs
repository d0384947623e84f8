//! Shutdown signals.

use std::io::Read;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// Flags about stopping.
#[derive(Debug, Clone, Args)]
pub struct ShutdownArgs {
    /// Stop when standard input closes, which happens when the parent process ends for whatever reason.
    #[arg(long, env = "HOLDFAST_EXIT_WITH_PARENT")]
    pub exit_with_parent: bool,
}

/// Completes when the process is asked to stop: by SIGTERM, SIGINT (Ctrl-C), or the end of its parent.
pub(crate) async fn shutdown_signal(args: ShutdownArgs) {
    let reason = tokio::select! {
        () = wait_for_signal(SignalKind::terminate()) => "SIGTERM",
        () = wait_for_signal(SignalKind::interrupt()) => "SIGINT",
        () = wait_for_parent_exit(args.exit_with_parent) => "parent process exited",
    };
    tracing::info!("stopping: {reason}");
}

async fn wait_for_signal(kind: SignalKind) {
    match signal(kind) {
        Ok(mut signals) => {
            signals.recv().await;
        }
        Err(error) => {
            tracing::error!(%error, "signal handling unavailable; stop the process with SIGKILL");
            std::future::pending::<()>().await;
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the end of the thread is awaited, whatever ends it")]
async fn wait_for_parent_exit(follows: bool) {
    if !follows {
        std::future::pending::<()>().await;
    }
    let (closed, end) = oneshot::channel::<()>();
    // A separate thread: a read of standard input can't be cancelled, and the runtime would wait for it when it ends.
    std::thread::spawn(move || {
        let mut input = std::io::stdin().lock();
        let mut buffer = [0; 64];
        // Input is ignored; only its end matters.
        while matches!(input.read(&mut buffer), Ok(count) if count > 0) {}
        drop(closed);
    });
    // Completes when the sender is dropped.
    let _ = end.await;
}
