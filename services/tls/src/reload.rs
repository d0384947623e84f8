//! Something that is made of files, and made anew when they change.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use holdfast_supervise::{TaskOwner, TaskSet};
use parking_lot::{Mutex, RwLock};
use tokio::time::{MissedTickBehavior, interval};

use crate::TlsError;
use crate::files::stamp;

/// How often it is looked whether files changed.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The latest that could be made.
pub(crate) struct HotReload<T> {
    current: RwLock<Arc<T>>,
    /// Looks after the files, for as long as this value lives.
    tasks: TaskSet,
}

impl<T: Send + Sync + 'static> HotReload<T> {
    /// Makes it, and looks after the files from now on, until nobody has it any more. Needs a tokio runtime.
    pub(crate) fn start(
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, TlsError> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, TlsError> {
        // Before they are read: what changes while they are is read again.
        let seen: Vec<_> = files.iter().map(|path| stamp(path)).collect();
        let current = RwLock::new(Arc::new(make()?));
        let reloaded = Arc::new(Self { current, tasks: TaskSet::new(TaskOwner::process()) });
        let (kept, files) =
            (Arc::downgrade(&reloaded), Arc::new(WatchedFiles { files, last_stamps: Mutex::new(seen), make }));
        reloaded.tasks.spawn_restarting("certificates", move || watch_files(Weak::clone(&kept), Arc::clone(&files)));
        Ok(reloaded)
    }

    pub(crate) fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.read())
    }
}

/// What it is made of.
struct WatchedFiles<F> {
    files: Vec<PathBuf>,
    /// What they looked like when they were last read.
    last_stamps: Mutex<Vec<Option<(SystemTime, u64)>>>,
    make: F,
}

async fn watch_files<T>(kept: Weak<HotReload<T>>, files: Arc<WatchedFiles<impl Fn() -> Result<T, TlsError>>>) {
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(kept) = kept.upgrade() else { return };
        let WatchedFiles { files, last_stamps, make } = files.as_ref();
        let found: Vec<_> = files.iter().map(|path| stamp(path)).collect();
        if found == *last_stamps.lock() {
            continue;
        }
        *last_stamps.lock() = found;
        match make() {
            Ok(made) => {
                *kept.current.write() = Arc::new(made);
                tracing::info!(?files, "certificates were read again");
            }
            // Also while a set is being replaced file by file; the last one makes it whole.
            Err(error) => tracing::warn!(%error, "changed certificates cannot be used; the old ones stay"),
        }
    }
}
