//! Numbers of calls and of their bytes, and their limits.

use std::fmt;

/// A limit of the calls of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallLimit {
    /// What is limited.
    pub what: &'static str,
    /// How many calls there may be, or what counts as so many.
    pub max: usize,
}

/// Why a call is rejected.
impl fmt::Display for CallLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is limited to {}; try again later", self.what, self.max)
    }
}

/// A number of calls, and the bytes of their bodies.
#[derive(Clone, Copy, Default)]
pub(crate) struct CallCount {
    pub(crate) calls: usize,
    pub(crate) bytes: usize,
}

impl CallCount {
    /// What calls that are not urgent may take of this limit.
    pub(crate) const fn without_reserve(self) -> Self {
        Self { calls: self.calls / 4 * 3, bytes: self.bytes / 4 * 3 }
    }

    pub(crate) fn fits(self, bytes: usize, max: Self) -> bool {
        self.calls < max.calls && self.bytes + bytes <= max.bytes
    }

    pub(crate) fn add(&mut self, bytes: usize) {
        self.calls += 1;
        self.bytes += bytes;
    }

    pub(crate) fn remove(&mut self, bytes: usize) {
        self.calls -= 1;
        self.bytes -= bytes;
    }
}

/// A call that counts until it is answered.
#[derive(Clone, Copy)]
pub(crate) struct CountedCall {
    /// 0 if it is of none.
    pub(crate) account: u64,
    pub(crate) bytes: usize,
    pub(crate) is_urgent: bool,
}
