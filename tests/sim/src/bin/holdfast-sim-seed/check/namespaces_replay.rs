//! Replays the entries of a namespaces shard against a simple model.

use std::collections::BTreeMap;

use holdfast_core::{AccountId, Command, CommandError, Incarnation, NamespacesCommand, Reply, Response, codec};

use super::namespace_model::{Expected, NamespaceModel};
use crate::apply_log::Entry;

/// A deletion: its slice, its incarnation, and its result.
type Deletion = (usize, Option<Incarnation>, Expected);

/// Everything that a namespaces shard went through.
pub(crate) struct NamespacesReplay {
    /// Before the first apply slice, and after each.
    pub(crate) states: Vec<NamespaceModel>,
    /// The place after so many entries: how many slices they have.
    pub(super) ends: Vec<usize>,
    /// What creations came to and in which slice, by their description, which names the call.
    pub(crate) creates: BTreeMap<String, Vec<(usize, Expected)>>,
    /// What deletions of a name came to, and of which incarnation.
    pub(crate) deletes: BTreeMap<(AccountId, String), Vec<Deletion>>,
}

/// Runs every command, and compares every answer. Replicas apply so many commands in a slice.
pub(crate) fn replay(
    (shard, slice_commands): (&str, usize),
    entries: &[Entry],
    findings: &mut Vec<String>,
) -> NamespacesReplay {
    let mut replayed = NamespacesReplay {
        states: vec![NamespaceModel::default()],
        ends: vec![0],
        creates: BTreeMap::new(),
        deletes: BTreeMap::new(),
    };
    let mut names = NamespaceModel::default();
    for (at, entry) in entries.iter().enumerate() {
        for (done, (command, reply)) in entry.commands.iter().zip(&entry.replies).enumerate() {
            if done > 0 && done.is_multiple_of(slice_commands) {
                replayed.states.push(names.clone());
            }
            let (Ok(command), Ok(reply)) = (codec::decode::<Command>(command), codec::decode::<Reply>(reply)) else {
                findings.push(format!("{shard}: [names] entry {at} has a command or reply that can't be read"));
                continue;
            };
            let expected = names.apply(&command);
            let seen = observed(&reply);
            let fits = match (&expected, &seen) {
                (Some(Expected::Namespace { incarnation: None }), Some(Expected::Namespace { .. })) => true,
                (expected, seen) => expected.is_some() && expected == seen,
            };
            if !fits {
                findings
                    .push(format!("{shard}: [names] entry {at} {command:?} was answered {reply:?}, not {expected:?}"));
            }
            let (Command::Namespaces(command), Some(seen)) = (command.inner(), seen) else { continue };
            let slice = replayed.states.len() - 1;
            replayed.record(slice, command, &mut names, seen, &mut |what| {
                findings.push(format!("{shard}: [names] entry {at} {what}"));
            });
        }
        replayed.states.push(names.clone());
        replayed.ends.push(replayed.states.len() - 1);
    }
    replayed
}

impl NamespacesReplay {
    fn record(
        &mut self,
        slice: usize,
        command: &NamespacesCommand,
        names: &mut NamespaceModel,
        seen: Expected,
        find: &mut dyn FnMut(String),
    ) {
        match command {
            NamespacesCommand::Create { request_id, account, name, description }
            | NamespacesCommand::Create2 { request_id, account, name, description, .. } => {
                if let Expected::Namespace { incarnation: Some(life) } = &seen
                    && names.get(*account, name).is_none()
                    && !names.was_created(request_id)
                    && !names.record_created(*request_id, *account, name, *life)
                {
                    find(format!("gives incarnation {life} again"));
                }
                self.creates.entry(description.clone()).or_default().push((slice, seen));
            }
            NamespacesCommand::Delete { account, name, incarnation } => {
                self.deletes.entry((*account, name.clone())).or_default().push((slice, *incarnation, seen));
            }
            _ => {}
        }
    }
}

fn observed(reply: &Reply) -> Option<Expected> {
    Some(match &reply.outcome {
        Ok(Response::Namespace(namespace) | Response::DurableNamespace(namespace, _)) => {
            Expected::Namespace { incarnation: Some(namespace.incarnation) }
        }
        Ok(Response::Done) => Expected::Done,
        Err(CommandError::NamespaceTaken(_)) => Expected::Taken,
        Err(CommandError::NamespaceNotFound) => Expected::NotFound,
        Err(CommandError::AccountNotFound(_)) => Expected::AccountNotFound,
        _ => return None,
    })
}
