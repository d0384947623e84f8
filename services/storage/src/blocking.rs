//! Work that blocks its thread, such as reads.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// Runs work that may take a second without blocking the other tasks of the thread, if it is one of a multi-threaded
/// runtime. A single-threaded runtime has no other thread, and outside of runtimes there are no tasks.
pub fn run_blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => block_in_place(work),
        _ => work(),
    }
}
