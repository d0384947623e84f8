//! Fills batches without a timer.

use futures::FutureExt;
use tokio::sync::mpsc;
use tokio::task::yield_now;

/// Yields to the ready tasks of this thread, then adds the items queued by then, up to `most` in all. A full batch is
/// left unchanged. Cancellation loses no items of the batch.
///
/// A thread of tokio's runtime runs a task that was just woken before tasks that were ready earlier. The receiver of
/// the first item of a burst would therefore continue with that item alone, just before the rest is queued; and an
/// entry or a frame costs much the same with one item as with many. The caller resumes once the thread has nothing else
/// to run, or after some sixty other tasks. No timer is involved.
pub async fn coalesce<T>(queue: &mut mpsc::Receiver<T>, batch: &mut Vec<T>, most: usize) {
    if batch.len() >= most {
        return;
    }
    yield_now().await;
    // Polls once. `try_recv` would block the thread while a send on another thread is half done.
    let _ = queue.recv_many(batch, most - batch.len()).now_or_never();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_batch_has_what_tasks_that_are_ready_are_about_to_queue() {
        let (sender, mut queue) = mpsc::channel(8);
        let gathering = tokio::spawn(async move {
            let mut batch = Vec::new();
            assert!(queue.recv_many(&mut batch, 4).await > 0);
            coalesce(&mut queue, &mut batch, 4).await;
            (batch, queue)
        });
        // All tasks are ready at once, and the first of them wakes the receiver.
        let burst = tokio::spawn(async move {
            for number in 0..6 {
                let sender = sender.clone();
                tokio::spawn(async move { sender.send(number).await });
            }
        });
        burst.await.unwrap();
        let (mut batch, mut queue) = gathering.await.unwrap();
        assert_eq!(batch.len(), 4, "{batch:?}");
        while let Some(left) = queue.recv().await {
            batch.push(left);
        }
        batch.sort_unstable();
        assert_eq!(batch, [0, 1, 2, 3, 4, 5]);
    }
}
