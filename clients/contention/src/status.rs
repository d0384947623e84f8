//! The status of a service.

use std::fmt;

/// The status of a service.
///
/// ```
/// use holdfast_contention::Status;
///
/// assert!(Status::Running.is_active() && !Status::Stopping.is_active());
/// assert_eq!(Status::Initial.to_string(), "INITIAL");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Not started yet, or stopped for good: it can be started.
    Initial,
    /// Starting.
    Starting,
    /// Running: it can be stopped.
    Running,
    /// Releasing its resources.
    Stopping,
}

impl Status {
    /// Returns true if it runs or is starting.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Starting | Self::Running)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Initial => "INITIAL",
            Self::Starting => "STARTING",
            Self::Running => "RUNNING",
            Self::Stopping => "STOPPING",
        })
    }
}
