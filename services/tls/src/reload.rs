//! Something that is made of files, and made anew when they change.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::time::{MissedTickBehavior, interval};

use crate::TlsError;
use crate::files::stamp;

/// How often it is looked whether files changed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The latest that could be made.
pub(crate) struct Reloaded<T> {
    current: RwLock<Arc<T>>,
}

impl<T: Send + Sync + 'static> Reloaded<T> {
    /// Makes it, and looks after the files from now on, until nobody has it any more. Needs a tokio runtime.
    pub(crate) fn start(
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, TlsError> + Send + 'static,
    ) -> Result<Arc<Self>, TlsError> {
        // Before they are read: what changes while they are is read again.
        let seen: Vec<_> = files.iter().map(|path| stamp(path)).collect();
        let reloaded = Arc::new(Self { current: RwLock::new(Arc::new(make()?)) });
        let kept = Arc::downgrade(&reloaded);
        tokio::spawn(async move {
            let mut seen = seen;
            let mut ticks = interval(LOOK_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let Some(kept) = Weak::upgrade(&kept) else { return };
                let found: Vec<_> = files.iter().map(|path| stamp(path)).collect();
                if found == seen {
                    continue;
                }
                seen = found;
                match make() {
                    Ok(made) => {
                        *kept.current.write() = Arc::new(made);
                        tracing::info!(?files, "certificates were read again");
                    }
                    // Also while a set is being replaced file by file; the last one makes it whole.
                    Err(error) => tracing::warn!(%error, "changed certificates cannot be used; the old ones stay"),
                }
            }
        });
        Ok(reloaded)
    }

    pub(crate) fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.read())
    }
}
