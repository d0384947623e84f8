//! Something that is made of files, and made anew when they change.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use holdfast_supervise::{Owner, TaskSet};
use parking_lot::{Mutex, RwLock};
use tokio::time::{MissedTickBehavior, interval};

use crate::TlsError;
use crate::files::stamp;

/// How often it is looked whether files changed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The latest that could be made.
pub(crate) struct Reloaded<T> {
    current: RwLock<Arc<T>>,
    /// Looks after the files, for as long as this value lives.
    tasks: TaskSet,
}

impl<T: Send + Sync + 'static> Reloaded<T> {
    /// Makes it, and looks after the files from now on, until nobody has it any more. Needs a tokio runtime.
    pub(crate) fn start(
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, TlsError> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, TlsError> {
        // Before they are read: what changes while they are is read again.
        let seen: Vec<_> = files.iter().map(|path| stamp(path)).collect();
        let current = RwLock::new(Arc::new(make()?));
        let reloaded = Arc::new(Self { current, tasks: TaskSet::new(Owner::process()) });
        let (kept, files) = (Arc::downgrade(&reloaded), Arc::new(Files { files, seen: Mutex::new(seen), make }));
        reloaded.tasks.keep("certificates", move || look_after(Weak::clone(&kept), Arc::clone(&files)));
        Ok(reloaded)
    }

    pub(crate) fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.read())
    }
}

/// What it is made of.
struct Files<F> {
    files: Vec<PathBuf>,
    /// What they looked like when they were last read.
    seen: Mutex<Vec<Option<(SystemTime, u64)>>>,
    make: F,
}

async fn look_after<T>(kept: Weak<Reloaded<T>>, files: Arc<Files<impl Fn() -> Result<T, TlsError>>>) {
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(kept) = kept.upgrade() else { return };
        let Files { files, seen, make } = files.as_ref();
        let found: Vec<_> = files.iter().map(|path| stamp(path)).collect();
        if found == *seen.lock() {
            continue;
        }
        *seen.lock() = found;
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
