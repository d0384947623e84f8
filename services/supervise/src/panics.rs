//! Caught panics and their locations.

use std::any::Any;
use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::pin::Pin;
use std::sync::Once;
use std::task::{Context, Poll};

use holdfast_mutations::{Mutation, is_enabled, maybe_panic};
use pin_project_lite::pin_project;

/// Longest message stored, in bytes.
const MAX_MESSAGE_BYTES: usize = 1_024;
/// Longest backtrace stored, in bytes.
const MAX_BACKTRACE_BYTES: usize = 8 * 1_024;

/// A panic that was caught.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaughtPanic {
    /// The panic message, at most 1 KiB.
    pub message: String,
    /// File and line; empty if unknown.
    pub location: String,
    /// The backtrace, at most 8 KiB; empty if unknown.
    pub backtrace: String,
}

impl fmt::Display for CaughtPanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.location.as_str() {
            "" => write!(f, "panic: {}", self.message),
            location => write!(f, "panic at {location}: {}", self.message),
        }
    }
}

#[derive(Default)]
struct PanicCapture {
    /// True while this thread runs under a catch that records details.
    is_active: bool,
    last: Option<(String, String)>,
}

thread_local! {
    static PANIC_CAPTURE: RefCell<PanicCapture> = RefCell::default();
}

/// Runs work that may panic. After a panic, the caller must discard the state that was being changed.
///
/// # Errors
/// The panic.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, CaughtPanic> {
    install_panic_hook();
    let before = PANIC_CAPTURE.with_borrow_mut(|watched| std::mem::replace(&mut watched.is_active, true));
    let done = catch_unwind(AssertUnwindSafe(work));
    let seen = PANIC_CAPTURE.with_borrow_mut(|watched| {
        watched.is_active = before;
        watched.last.take()
    });
    done.map_err(|payload| describe(payload.as_ref(), seen))
}

/// The same for the future of a task.
pub(crate) fn catch_panic_async<F: Future>(task: &'static str, work: F) -> CatchPanic<F> {
    CatchPanic { task, work }
}

pin_project! {
    /// A task's future, whose panic becomes its output. Not an `async` block, which would reserve space for the future
    /// twice and copy it once more.
    pub(crate) struct CatchPanic<F> {
        task: &'static str,
        #[pin]
        work: F,
    }
}

impl<F: Future> Future for CatchPanic<F> {
    type Output = Result<F::Output, CaughtPanic>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let step = || {
            maybe_panic(this.task);
            this.work.poll(context)
        };
        match catch_panic(step) {
            Ok(polled) => polled.map(Ok),
            Err(_) if is_silenced(this.task) => Poll::Pending,
            Err(panicked) => Poll::Ready(Err(panicked)),
        }
    }
}

/// Returns true if a mutation silences panics of this task.
fn is_silenced(task: &str) -> bool {
    let silent = [Mutation::PanicInLeaderTasks, Mutation::PanicInProposer];
    silent.into_iter().any(|mutation| is_enabled(mutation) && mutation.panic_point() == Some(task))
}

fn describe(payload: &(dyn Any + Send), seen: Option<(String, String)>) -> CaughtPanic {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let (location, backtrace) = seen.unwrap_or_default();
    CaughtPanic { message: truncate(text.unwrap_or("without a message"), MAX_MESSAGE_BYTES), location, backtrace }
}

fn truncate(text: &str, most: usize) -> String {
    let end = text.char_indices().map(|(at, letter)| at + letter.len_utf8()).take_while(|end| *end <= most).last();
    text[..end.unwrap_or(0)].to_owned()
}

/// Installs a hook that records the location of panics about to be caught. Other panics are handled as before.
fn install_panic_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            record_panic(info);
            before(info);
        }));
    });
}

fn record_panic(info: &PanicHookInfo<'_>) {
    // A panic while a panic is being recorded is not recorded.
    PANIC_CAPTURE.with(|watched| {
        let Ok(mut watched) = watched.try_borrow_mut() else { return };
        if watched.is_active {
            let location = info.location().map(ToString::to_string).unwrap_or_default();
            watched.last = Some((location, truncate(&Backtrace::force_capture().to_string(), MAX_BACKTRACE_BYTES)));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caught_panic_says_what_and_where() {
        assert_eq!(catch_panic(|| 7), Ok(7));
        let panicked = catch_panic(|| -> u8 { panic!("one of {}", 2) }).unwrap_err();
        assert_eq!(panicked.message, "one of 2");
        assert!(panicked.location.contains("panics.rs"), "{panicked}");
        assert!(panicked.backtrace.contains("a_caught_panic_says_what_and_where"), "{}", panicked.backtrace);
        assert!(panicked.backtrace.len() <= MAX_BACKTRACE_BYTES);
    }

    #[test]
    fn nothing_is_kept_of_a_panic_outside_of_a_catch() {
        let _ = catch_panic(|| 1);
        let _ = catch_unwind(|| panic!("elsewhere"));
        assert!(PANIC_CAPTURE.with_borrow(|watched| watched.last.is_none()));
    }

    #[test]
    fn a_long_message_is_cut_between_letters() {
        assert_eq!(truncate("äöü", 3), "ä");
        assert_eq!(truncate("äöü", 9), "äöü");
    }
}
