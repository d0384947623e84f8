//! Tasks of one call or connection.

use std::panic::resume_unwind;

use futures::FutureExt;
use tokio::task::JoinHandle;

use crate::panics::catch_panic_async;
use crate::scheduling_group::SharedGroup;
use crate::tasks::report_failure;

/// Runs the work of one call or connection. A panic is counted and logged, and ends only that call or connection: a
/// waiter has the other end of a channel, or the handle, and sees it close.
#[allow(clippy::disallowed_methods)]
pub fn spawn_temporary<T: Send + 'static>(
    task: &'static str,
    work: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let work = catch_panic_async(task, work).map(move |done| {
        done.unwrap_or_else(|panicked| {
            report_failure("", 0, task, &panicked.to_string());
            // For a waiter on the handle.
            resume_unwind(Box::new(panicked.to_string()))
        })
    });
    tokio::spawn(work)
}

/// As [`spawn_temporary`]; the task is in the scheduling group of the one that spawns it, if that has one.
pub fn spawn_alongside<T: Send + 'static>(
    task: &'static str,
    work: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    match SharedGroup::current() {
        Some(group) => spawn_temporary(task, group.run(work)),
        None => spawn_temporary(task, work),
    }
}

/// Runs work within the task of another owner, which a panic of the work does not end: it is counted and logged, and the
/// output is `None`.
pub fn survive_panic<F: Future>(task: &'static str, work: F) -> impl Future<Output = Option<F::Output>> {
    catch_panic_async(task, work)
        .map(move |done| done.map_err(|panicked| report_failure("", 0, task, &panicked.to_string())).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_waits_learns_of_the_end_and_of_a_panic() {
        assert_eq!(spawn_temporary("call", async { 7 }).await.ok(), Some(7));
        let panicked = spawn_temporary("call", async { panic!("no luck") }).await.unwrap_err();
        let message = panicked.into_panic().downcast::<String>().expect("it is text");
        assert!(message.contains("no luck"), "{message}");
    }

    #[tokio::test]
    async fn a_panic_is_survived_by_the_task_that_it_is_in() {
        assert_eq!(survive_panic("call", async { 7 }).await, Some(7));
        assert_eq!(survive_panic("call", async { panic!("no luck") }).await, None::<()>);
    }
}
