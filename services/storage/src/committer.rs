//! The committer: the only writer. It drains the queue of all replicas, writes the operations as one batch with one
//! sync, and calls the callbacks in order. While it syncs, the next batch accumulates, so no timer is needed.
//!
//! With RocksDB it is a thread, because a sync blocks. With the in-memory engine it is a task of the runtime that
//! opened the store. So a deterministic simulation decides when it runs, and a simulated crash ends it.

use std::sync::Arc;
use std::thread::JoinHandle;

use metrics::{Counter, Histogram, counter, histogram};
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::StorageError;
use crate::batch::Batch;
use crate::batch_builder::BatchBuilder;
use crate::engine::Engine;
use crate::queue::{Completion, Queue, WriteGroup, WriteRequest};

/// The state that the committer and the handles of a store share.
pub(crate) struct Shared {
    pub(crate) queue: Queue,
    /// `None` once the committer has stopped and released the lock on the directory.
    engine: RwLock<Option<Box<dyn Engine>>>,
    place: String,
    failed: watch::Sender<Option<StorageError>>,
    stopped: watch::Sender<bool>,
}

impl Shared {
    pub(crate) fn new(engine: Box<dyn Engine>) -> Arc<Self> {
        let place = engine.location().to_owned();
        let (failed, stopped) = (watch::Sender::new(None), watch::Sender::new(false));
        Arc::new(Self { queue: Queue::default(), engine: RwLock::new(Some(engine)), place, failed, stopped })
    }

    /// Returns the name for messages: the data directory.
    pub(crate) fn location(&self) -> &str {
        &self.place
    }

    /// Reads from the engine, unless the store is poisoned or closed.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&dyn Engine) -> Result<T, StorageError>) -> Result<T, StorageError> {
        if let Some(first) = self.poison_error() {
            return Err(first);
        }
        match &*self.engine.read() {
            Some(engine) => read(engine.as_ref()),
            None => Err(self.closed()),
        }
    }

    /// Submits an operation to the committer.
    pub(crate) fn submit(&self, queued: WriteRequest) {
        if let Err(refused) = self.queue.push(queued) {
            (refused.done)(Err(self.poison_error().unwrap_or_else(|| self.closed())));
        }
    }

    pub(crate) fn failed(&self) -> watch::Receiver<Option<StorageError>> {
        self.failed.subscribe()
    }

    pub(crate) fn stopped(&self) -> watch::Receiver<bool> {
        self.stopped.subscribe()
    }

    pub(crate) fn closed(&self) -> StorageError {
        StorageError::Closed { place: self.place.clone() }
    }

    fn poison_error(&self) -> Option<StorageError> {
        let first = self.failed.borrow();
        first.as_ref().map(|first| StorageError::Poisoned { first: Arc::new(first.clone()) })
    }

    fn write(&self, batch: &Batch) -> Result<(), StorageError> {
        if let Some(first) = self.poison_error() {
            return Err(first);
        }
        if batch.is_empty() {
            return Ok(());
        }
        let written = match &*self.engine.read() {
            Some(engine) => engine.write_synced(batch),
            None => Err(self.closed()),
        };
        if let Err(first) = &written {
            tracing::error!(error = %first, "write failed; store stopped permanently");
            self.failed.send_replace(Some(first.clone()));
        }
        written
    }
}

/// The committer. It is dropped at its end, or with the runtime of a simulated node. It then fails all pending
/// operations with `Closed` and releases the engine.
pub(crate) struct Committer {
    shared: Arc<Shared>,
    batch_builder: BatchBuilder,
    metrics: CommitMetrics,
}

/// The handles of the metrics of every write: looking them up would cost more than recording.
struct CommitMetrics {
    syncs: Counter,
    bytes: Counter,
    batch_operations: Histogram,
    batch_bytes: Histogram,
}

impl CommitMetrics {
    fn new() -> Self {
        Self {
            syncs: counter!("holdfast_storage_syncs_total"),
            bytes: counter!("holdfast_storage_bytes_total"),
            batch_operations: histogram!("holdfast_storage_batch_operations"),
            batch_bytes: histogram!("holdfast_storage_batch_bytes"),
        }
    }

    fn record(&self, batch: &Batch, operations: usize) {
        self.syncs.increment(1);
        self.bytes.increment(batch.bytes() as u64);
        self.batch_operations.record(operations as f64);
        self.batch_bytes.record(batch.bytes() as f64);
    }
}

impl Committer {
    pub(crate) fn new(shared: Arc<Shared>, batch_builder: BatchBuilder) -> Self {
        Self { shared, batch_builder, metrics: CommitMetrics::new() }
    }

    /// Starts the committer as a thread.
    #[expect(clippy::disallowed_methods, reason = "its owner joins the thread, and a panic fails the store")]
    pub(crate) fn spawn_thread(mut self) -> Result<JoinHandle<()>, StorageError> {
        let place = self.shared.place.clone();
        let run = move || {
            while let Some(drained) = self.shared.queue.drain_in_thread() {
                self.commit(drained);
            }
        };
        let thread = std::thread::Builder::new().name("storage-commit".into()).spawn(run);
        thread.map_err(|error| StorageError::io(&place, "starting the committer thread", error))
    }

    /// Starts the committer as a task of the runtime.
    #[expect(clippy::disallowed_methods, reason = "a panic fails the store")]
    pub(crate) fn spawn_task(mut self, runtime: &tokio::runtime::Handle) {
        runtime.spawn(async move {
            while let Some(drained) = self.shared.queue.drain_in_task().await {
                let waiting = PendingGroup::new(&self.shared, drained);
                let delay = self.shared.read(|engine| Ok(engine.sync_delay())).unwrap_or_default();
                if !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                self.commit_group(waiting);
            }
        });
    }

    fn commit(&mut self, drained: WriteGroup) {
        let waiting = PendingGroup::new(&self.shared, drained);
        self.commit_group(waiting);
    }

    fn commit_group(&mut self, mut waiting: PendingGroup) {
        let mut batch = Batch::default();
        let operations = waiting.operations.len();
        let mut callbacks = Callbacks::new(&self.shared, operations);
        for queued in waiting.operations.drain(..) {
            self.batch_builder.add(&mut batch, queued.replica, &queued.operation);
            callbacks.done.push(queued.done);
        }
        let written = self.shared.write(&batch);
        if written.is_ok() {
            self.metrics.record(&batch, operations);
        }
        callbacks.complete(&written);
        // Frees queue space last, so that operations waiting for space follow the callbacks of this group.
        drop(waiting);
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A callback or this crate has a bug. The data on disk is consistent, but there is no writer any more.
            let fault = StorageError::io(&self.shared.place, "the committer", "it panicked");
            self.shared.failed.send_replace(Some(fault));
        }
        let rest = self.shared.queue.stop();
        let engine = self.shared.engine.write().take();
        if let Some(engine) = engine.filter(|_| self.shared.poison_error().is_none())
            && let Err(error) = engine.end_log()
        {
            // Everything that was acknowledged is on disk all the same.
            tracing::warn!(%error, "ending the store's log failed");
        }
        for queued in rest {
            (queued.done)(Err(self.shared.closed()));
        }
        self.shared.stopped.send_replace(true);
    }
}

/// Operations between the queue and the write. If dropped before the write, they fail with `Closed`.
struct PendingGroup {
    shared: Arc<Shared>,
    operations: Vec<WriteRequest>,
    bytes: usize,
}

impl PendingGroup {
    fn new(shared: &Arc<Shared>, drained: WriteGroup) -> Self {
        Self { shared: shared.clone(), operations: drained.operations, bytes: drained.bytes }
    }
}

impl Drop for PendingGroup {
    fn drop(&mut self) {
        self.shared.queue.release(self.bytes);
        for queued in self.operations.drain(..) {
            (queued.done)(Err(self.shared.closed()));
        }
    }
}

/// The callbacks of one batch. Each is called once, even if one of them panics.
struct Callbacks<'a> {
    shared: &'a Shared,
    done: Vec<Completion>,
}

impl<'a> Callbacks<'a> {
    fn new(shared: &'a Shared, capacity: usize) -> Self {
        Self { shared, done: Vec::with_capacity(capacity) }
    }

    fn complete(mut self, result: &Result<(), StorageError>) {
        // Each callback is removed before its call, so that the drop calls the remaining ones.
        self.done.reverse();
        while let Some(done) = self.done.pop() {
            done(result.clone());
        }
    }
}

impl Drop for Callbacks<'_> {
    fn drop(&mut self) {
        while let Some(done) = self.done.pop() {
            done(Err(self.shared.closed()));
        }
    }
}
