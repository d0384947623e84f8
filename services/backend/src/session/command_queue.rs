//! The commands of a client that wait for the one in flight.

use std::collections::VecDeque;

use holdfast_routing::NestedReservation;

use super::client_command::ClientCommand;

/// Commands in their order, and what counts the bytes of their messages until they start.
#[derive(Debug, Default)]
pub(super) struct CommandQueue(VecDeque<(ClientCommand, Option<NestedReservation>)>);

impl CommandQueue {
    /// Adds a command of the client, whose message counts so many bytes.
    pub(super) fn push_back(&mut self, command: ClientCommand, bytes: NestedReservation) {
        self.0.push_back((command, Some(bytes)));
    }

    /// Adds the error that is the last of the client's messages.
    pub(super) fn push_malformed(&mut self, command: ClientCommand) {
        self.0.push_back((command, None));
    }

    /// Adds a command of the connection itself, after all others.
    pub(super) fn push_own(&mut self, command: ClientCommand) {
        self.0.push_back((command, None));
    }

    /// Adds a command of the connection itself, before all others.
    pub(super) fn push_front(&mut self, command: ClientCommand) {
        self.0.push_front((command, None));
    }

    pub(super) fn pop_front(&mut self) -> Option<ClientCommand> {
        self.0.pop_front().map(|(command, _)| command)
    }

    pub(super) fn front(&self) -> Option<&ClientCommand> {
        self.0.front().map(|(command, _)| command)
    }

    pub(super) fn back(&self) -> Option<&ClientCommand> {
        self.0.back().map(|(command, _)| command)
    }

    /// Removes the queries at an earlier leader.
    pub(super) fn remove_reconciliation(&mut self) {
        self.0.retain(|(command, _)| !command.is_reconciliation());
    }

    /// Takes those commands out that this picks, in their order.
    pub(super) fn extract(&mut self, mut picks: impl FnMut(&ClientCommand) -> bool) -> Vec<ClientCommand> {
        let (picked, left) = std::mem::take(&mut self.0).into_iter().partition(|(command, _)| picks(command));
        self.0 = left;
        let picked: VecDeque<(ClientCommand, Option<NestedReservation>)> = picked;
        picked.into_iter().map(|(command, _)| command).collect()
    }

    /// Returns the commands in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &ClientCommand> {
        self.0.iter().map(|(command, _)| command)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_picked_is_taken_out_in_order_and_the_rest_stays() {
        let mut queue = CommandQueue::default();
        for name in ["a", "b", "c", "d"] {
            queue.push_own(ClientCommand::Requery(name.to_owned()));
        }
        let is_picked =
            |command: &ClientCommand| matches!(command, ClientCommand::Requery(name) if name == "b" || name == "d");
        let names = |commands: &[ClientCommand]| {
            let names = commands.iter().filter_map(ClientCommand::acquire_request_id).map(str::to_owned);
            names.collect::<Vec<_>>()
        };
        assert_eq!(names(&queue.extract(is_picked)), ["b", "d"]);
        assert!(queue.extract(is_picked).is_empty());
        assert_eq!(names(&queue.extract(|_| true)), ["a", "c"]);
        assert!(queue.is_empty());
    }

    #[test]
    fn queries_at_an_earlier_leader_are_removed_and_the_commands_of_the_client_stay() {
        let mut queue = CommandQueue::default();
        queue.push_malformed(ClientCommand::Close);
        for _ in 0..2 {
            queue.remove_reconciliation();
            queue.push_front(ClientCommand::Requery("a".to_owned()));
            queue.push_front(ClientCommand::RequeryPermits("b".to_owned()));
            queue.push_front(ClientCommand::ReconcileHolds(Vec::new()));
            queue.push_front(ClientCommand::ReconcilePermits(Vec::new()));
        }
        assert_eq!(queue.len(), 5);
        queue.remove_reconciliation();
        assert!(queue.len() == 1 && matches!(queue.back(), Some(ClientCommand::Close)));
    }
}
