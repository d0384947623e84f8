//! The bytes of requests that a connection has read, until their calls end.

use holdfast_routing::{ByteBudget, NestedBudget, NestedReservation};
use parking_lot::Mutex;

/// Bytes of requests of one connection.
const MAX_REQUEST_BYTES: usize = 8 << 20;
/// The same before its first valid credential: two bodies of the largest size.
const MAX_STRANGER_BYTES: usize = 128 << 10;

/// The budget of a connection for the requests that it reads.
pub(super) struct RequestBudget(Mutex<OwnerBudget>);

struct OwnerBudget {
    of_connection: NestedBudget,
    /// What a connection without an owner has not.
    _withheld: Option<NestedReservation>,
}

/// What a call has reserved of the budget that its connection had at its start.
#[derive(Default)]
pub(super) struct RequestBytes {
    budget: Option<NestedBudget>,
    reserved: Option<NestedReservation>,
    read: usize,
}

impl RequestBudget {
    /// The budget of a connection whose owner is not known.
    pub(super) fn of_stranger() -> Self {
        let of_connection = NestedBudget::new(u32::try_from(MAX_REQUEST_BYTES).unwrap_or(u32::MAX), None);
        let withheld = of_connection.try_reserve(MAX_REQUEST_BYTES - MAX_STRANGER_BYTES);
        Self(Mutex::new(OwnerBudget { of_connection, _withheld: withheld }))
    }

    /// Gives the connection the budget of one with an owner. Further calls count in that of the account too.
    pub(super) fn set_account(&self, of_account: Option<ByteBudget>) {
        let mut budget = self.0.lock();
        let of_connection = budget.of_connection.within(of_account);
        *budget = OwnerBudget { of_connection, _withheld: None };
    }
}

impl RequestBytes {
    /// Reserves bytes until the call ends.
    ///
    /// # Errors
    /// If there is no room for them: the budget, to wait for some.
    pub(super) fn try_reserve(&mut self, of: &RequestBudget, bytes: usize) -> Result<(), NestedBudget> {
        let budget = self.budget.get_or_insert_with(|| of.0.lock().of_connection.clone());
        match budget.try_reserve(bytes) {
            Some(reserved) => {
                self.add(reserved, bytes);
                Ok(())
            }
            None => Err(budget.clone()),
        }
    }

    /// Adds what was reserved, for so many bytes, of the budget that [`Self::try_reserve`] returned.
    pub(super) fn add(&mut self, more: NestedReservation, bytes: usize) {
        self.read += bytes;
        match &mut self.reserved {
            Some(reserved) => reserved.merge(more),
            None => self.reserved = Some(more),
        }
    }

    /// Returns the bytes of the request that were read.
    pub(super) fn read(&self) -> usize {
        self.read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_a_connection_share_its_bytes_and_an_owner_has_more() {
        let of_connection = RequestBudget::of_stranger();
        let (mut first, mut second, mut third) =
            (RequestBytes::default(), RequestBytes::default(), RequestBytes::default());
        for _ in 0..2 {
            assert!(first.try_reserve(&of_connection, 64 << 10).is_ok());
        }
        assert!(second.try_reserve(&of_connection, 1).is_err());
        of_connection.set_account(Some(ByteBudget::new(1 << 20)));
        assert!(second.try_reserve(&of_connection, 1).is_ok(), "a call from before goes on");
        assert_eq!([first.read(), second.read()], [128 << 10, 1]);
        assert!(third.try_reserve(&of_connection, 1 << 20).is_ok());
        let mut fourth = RequestBytes::default();
        assert!(fourth.try_reserve(&of_connection, 1).is_err(), "the account has no more");
    }
}
