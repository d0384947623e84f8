//! Contenders and retrievers: the receivers of ownership changes.

use std::collections::BTreeMap;
use std::fmt;

use crate::contender_id::ContenderIdGenerator;
use crate::error::ContentionError;
use crate::state::MutexState;

/// The longest mutex name and contender id, in bytes.
const MAX_BYTES: usize = 128;
/// The prefix of session ids, which no contender may use.
const SESSION_PREFIX: &str = "se_";

/// Receives the changes of a mutex's owner, without contending for it.
///
/// Calls are sequential and in order, on a thread that may block for a while; a panic is logged and contained. A call
/// must not wait for the service to stop, because the service waits for the call.
///
/// ```
/// use holdfast_contention::{MutexRetriever, MutexState};
///
/// struct Printer;
///
/// impl MutexRetriever for Printer {
///     fn mutex(&self) -> &str {
///         "reports"
///     }
///
///     fn notify_owner(&self, state: &MutexState) {
///         println!("{} goes, {} comes", state.before().owner_id(), state.after().owner_id());
///     }
/// }
/// ```
pub trait MutexRetriever: Send + Sync + 'static {
    /// The mutex: a name of 1 to 128 bytes.
    fn mutex(&self) -> &str;

    /// Called when the owner changes, and finally, with no new owner, when the service stops. Not called for renewals.
    fn notify_owner(&self, state: &MutexState);
}

/// Contends for a mutex, and is notified when it becomes the owner and when it ceases to be. Calls are as for
/// [`MutexRetriever`].
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use holdfast_contention::{Timestamp, MutexContender, MutexOwner, MutexState};
///
/// struct Exporter {
///     is_on: AtomicBool,
/// }
///
/// impl MutexContender for Exporter {
///     fn mutex(&self) -> &str {
///         "export"
///     }
///
///     fn contender_id(&self) -> &str {
///         "host-1"
///     }
///
///     fn on_acquired(&self, _state: &MutexState) {
///         self.is_on.store(true, Ordering::Release);
///     }
///
///     fn on_released(&self, _state: &MutexState) {
///         self.is_on.store(false, Ordering::Release);
///     }
/// }
///
/// let exporter = Exporter { is_on: AtomicBool::new(false) };
/// let owner = MutexOwner::new("host-1", Timestamp::now(), Timestamp::FOREVER, Timestamp::FOREVER);
/// exporter.notify_owner(&MutexState::new(MutexOwner::NONE, owner));
/// assert!(exporter.is_on.load(Ordering::Acquire));
/// ```
pub trait MutexContender: Send + Sync + 'static {
    /// The mutex: a name of 1 to 128 bytes.
    fn mutex(&self) -> &str;

    /// The contender's id: 1 to 128 bytes, unique among contenders, and not beginning with `se_`.
    fn contender_id(&self) -> &str;

    /// Called when the contender becomes the owner.
    fn on_acquired(&self, state: &MutexState);

    /// Called when the contender ceases to be the owner. When the service stops, it keeps the mutex until this has
    /// returned, but not longer than the time to live.
    fn on_released(&self, state: &MutexState);

    /// Metadata shown to all clients while it is the owner: up to 1,024 bytes in all. Called with each call to the
    /// service, so it must not block.
    fn metadata(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// Maps a change of the owner to the two calls above; ignores changes between other owners.
    fn notify_owner(&self, state: &MutexState) {
        if state.is_acquired(self.contender_id()) {
            self.on_acquired(state);
        }
        if state.is_released(self.contender_id()) {
            self.on_released(state);
        }
    }
}

type Callback = Box<dyn Fn(&MutexState) + Send + Sync>;

/// A contender made from two functions.
///
/// ```
/// use holdfast_contention::{Contender, MutexContender};
///
/// # fn main() -> Result<(), holdfast_contention::ContentionError> {
/// let contender = Contender::new("reports")?
///     .when_acquired(|state| println!("token {:?}", state.after().fencing_token()))
///     .when_released(|_| println!("over"));
/// assert_eq!(contender.mutex(), "reports");
/// # Ok(())
/// # }
/// ```
pub struct Contender {
    mutex: String,
    contender_id: String,
    metadata: BTreeMap<String, String>,
    acquired: Callback,
    released: Callback,
}

impl Contender {
    /// Creates a contender with an id from [`ContenderIdGenerator::HOST`] and functions that do nothing.
    ///
    /// # Errors
    /// [`ContentionError::Invalid`] when the name is blank or longer than 128 bytes.
    pub fn new(mutex: impl Into<String>) -> Result<Self, ContentionError> {
        Self::with_id(mutex, ContenderIdGenerator::HOST.generate())
    }

    /// Creates a contender with the given id.
    ///
    /// # Errors
    /// [`ContentionError::Invalid`] when the name or the id is blank or longer than 128 bytes, or when the id begins
    /// with `se_`.
    pub fn with_id(mutex: impl Into<String>, contender_id: impl Into<String>) -> Result<Self, ContentionError> {
        let (mutex, contender_id) = (mutex.into(), contender_id.into());
        check_mutex(&mutex)?;
        check_contender_id(&contender_id)?;
        let nothing = || Box::new(|_: &MutexState| ());
        Ok(Self { mutex, contender_id, metadata: BTreeMap::new(), acquired: nothing(), released: nothing() })
    }

    /// Sets the function that is called when it becomes the owner.
    #[must_use]
    pub fn when_acquired(self, call: impl Fn(&MutexState) + Send + Sync + 'static) -> Self {
        Self { acquired: Box::new(call), ..self }
    }

    /// Sets the function that is called when it ceases to be the owner.
    #[must_use]
    pub fn when_released(self, call: impl Fn(&MutexState) + Send + Sync + 'static) -> Self {
        Self { released: Box::new(call), ..self }
    }

    /// Sets its metadata as owner.
    #[must_use]
    pub fn with_metadata(self, metadata: BTreeMap<String, String>) -> Self {
        Self { metadata, ..self }
    }
}

impl MutexContender for Contender {
    fn mutex(&self) -> &str {
        &self.mutex
    }

    fn contender_id(&self) -> &str {
        &self.contender_id
    }

    fn on_acquired(&self, state: &MutexState) {
        (self.acquired)(state);
    }

    fn on_released(&self, state: &MutexState) {
        (self.released)(state);
    }

    fn metadata(&self) -> BTreeMap<String, String> {
        self.metadata.clone()
    }
}

impl fmt::Debug for Contender {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Contender");
        shown.field("mutex", &self.mutex).field("contender_id", &self.contender_id).finish_non_exhaustive()
    }
}

pub(crate) fn check_mutex(mutex: &str) -> Result<(), ContentionError> {
    check("the name of the mutex", mutex)
}

pub(crate) fn check_contender_id(contender_id: &str) -> Result<(), ContentionError> {
    let what = "the id of the contender";
    check(what, contender_id)?;
    if contender_id.starts_with(SESSION_PREFIX) {
        return Err(ContentionError::Invalid {
            what,
            why: format!("it begins with `{SESSION_PREFIX}`, as sessions do"),
        });
    }
    Ok(())
}

fn check(what: &'static str, text: &str) -> Result<(), ContentionError> {
    let why = if text.trim().is_empty() {
        "it is blank".to_owned()
    } else if text.len() > MAX_BYTES {
        format!("it has {} bytes, and {MAX_BYTES} are the most", text.len())
    } else {
        return Ok(());
    };
    Err(ContentionError::Invalid { what, why })
}
