//! Watches the disk itself: how long a sync of a small file takes that nobody else writes.
//!
//! A call that is answered after an fsync can't be faster than the disk. Where the disk of the machine stands still for
//! everybody, that time is none of the service's, so it is taken off the calls that met it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A sync that takes longer is a stall of the disk. Under any load of these tests it takes a tenth of it.
const STALL: Duration = Duration::from_millis(30);
const PERIOD: Duration = Duration::from_millis(20);
const BLOCK_BYTES: usize = 512;

/// The times at which the disk stood still.
pub type Stalls = Vec<(Instant, Instant)>;

/// A thread that syncs a file of its own 50 times a second, until it is dropped.
pub struct DiskProbe {
    stalls: Arc<Mutex<Stalls>>,
    /// Ends the thread when it is dropped.
    running: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl DiskProbe {
    /// Starts with a file in this folder, which is on the disk to be watched.
    ///
    /// # Errors
    /// If the file can't be created.
    pub fn start(folder: &Path) -> Result<Self, String> {
        let file = tempfile::tempfile_in(folder).map_err(|error| format!("no file to watch the disk: {error}"))?;
        let (stalls, (running, stopped)) = (Arc::<Mutex<Stalls>>::default(), channel::<()>());
        let seen = Arc::clone(&stalls);
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                let stall = sync_once(&file).filter(|(from, to)| *to - *from > STALL);
                seen.lock().extend(stall);
            }
        });
        Ok(Self { stalls, running: Some(running), thread: Some(thread) })
    }

    /// Takes the stalls since the last call.
    pub fn take(&self) -> Stalls {
        std::mem::take(&mut *self.stalls.lock())
    }
}

impl Drop for DiskProbe {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Overwrites the file and syncs it. The time in which this thread waited for a processor is not the disk's.
fn sync_once(file: &File) -> Option<(Instant, Instant)> {
    let (from, waited) = (Instant::now(), wait_for_processor());
    file.write_all_at(&[0; BLOCK_BYTES], 0).and_then(|()| file.sync_data()).ok()?;
    let to = Instant::now();
    let scheduled = Duration::from_nanos(wait_for_processor()?.saturating_sub(waited?));
    Some((from, to.checked_sub(scheduled).map_or(from, |end| end.max(from))))
}

/// For how many nanoseconds this thread could run and did not: the second figure of `schedstat`.
fn wait_for_processor() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().nth(1)?.parse().ok()
}

/// How much of this time the disk stood still.
pub fn overlap(stalls: &[(Instant, Instant)], from: Instant, to: Instant) -> Duration {
    let parts = stalls.iter().map(|(begin, end)| (*end).min(to).saturating_duration_since((*begin).max(from)));
    parts.sum()
}
