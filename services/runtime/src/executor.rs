//! The async runtime of a server.

use std::io;
use std::pin::Pin;

use holdfast_telemetry::flush_traces;
use tokio::runtime::Builder;

use crate::shutdown::{ShutdownArgs, shutdown_signal};

/// Tasks that a worker polls between two looks at sockets and timers. Some tasks, such as a connection with many calls,
/// take half a millisecond. With tokio's 61 of them in between, a call of somebody else would wait 30 ms to be noticed.
const EVENT_INTERVAL: u32 = 8;

/// Runs a server to completion on a worker for each processor. Its argument completes when it is asked to stop.
///
/// # Errors
/// When the system denies threads or an event queue.
pub fn run_server<F: Future>(
    shutdown: ShutdownArgs,
    server: impl FnOnce(Pin<Box<dyn Future<Output = ()>>>) -> F,
) -> io::Result<F::Output> {
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.enable_all().event_interval(EVENT_INTERVAL).global_queue_interval(EVENT_INTERVAL).build()?;
    Ok(runtime.block_on(async {
        let result = server(Box::pin(shutdown_signal(shutdown))).await;
        flush_traces();
        result
    }))
}
