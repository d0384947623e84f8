//! The async runtime of a server.

use std::io;

use tokio::runtime::Builder;

/// Tasks that a worker polls between two looks at sockets and timers. Some tasks, such as a connection with many calls,
/// take half a millisecond. With tokio's 61 of them in between, a call of somebody else would wait 30 ms to be noticed.
const EVENT_INTERVAL: u32 = 8;

/// Runs a server's future to completion on a worker for each processor.
///
/// # Errors
/// When the system denies threads or an event queue.
pub fn block_on<F: Future>(server: F) -> io::Result<F::Output> {
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.enable_all().event_interval(EVENT_INTERVAL).global_queue_interval(EVENT_INTERVAL).build()?;
    Ok(runtime.block_on(server))
}
