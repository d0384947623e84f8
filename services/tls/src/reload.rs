//! A value that is built from files, and rebuilt when they change.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use holdfast_supervise::TaskSet;
use parking_lot::{Mutex, RwLock};
use tokio::time::{MissedTickBehavior, interval};

use crate::TlsError;
use crate::files::stamp;

/// Time between two checks of the files.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The latest value that could be built.
pub(crate) struct HotReload<T> {
    current: RwLock<Arc<T>>,
    /// Watches the files, for as long as this value lives.
    tasks: TaskSet,
}

impl<T: Send + Sync + 'static> HotReload<T> {
    /// Builds the value and watches the files until its last owner drops it. Needs a tokio runtime.
    pub(crate) fn start(
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, TlsError> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, TlsError> {
        // Taken before the files are read: a change during the read causes another one.
        let seen: Vec<_> = files.iter().map(|path| stamp(path)).collect();
        let current = RwLock::new(Arc::new(make()?));
        let reloaded = Arc::new(Self { current, tasks: TaskSet::in_background() });
        let (kept, files) =
            (Arc::downgrade(&reloaded), Arc::new(WatchedFiles { files, last_stamps: Mutex::new(seen), make }));
        reloaded.tasks.spawn_restarting("certificates", move || watch_files(Weak::clone(&kept), Arc::clone(&files)));
        Ok(reloaded)
    }

    pub(crate) fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.read())
    }
}

/// The files of the value.
struct WatchedFiles<F> {
    files: Vec<PathBuf>,
    /// Their stamps at the last read.
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
            // This also happens while a set is replaced file by file; the last file completes it.
            Err(error) => tracing::warn!(%error, "changed certificates cannot be used; the old ones stay"),
        }
    }
}
