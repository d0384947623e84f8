//! Replays what a namespaces shard applied against the names that are obviously right.

use std::collections::BTreeMap;

use holdfast_core::{AccountId, Answer, Command, Incarnation, NamespacesCommand, Refusal, Reply, codec};

use super::names::{Expected, Names};
use crate::ledger::Entry;

/// A deletion: its entry, which life it names, and what it came to.
type Deletion = (usize, Option<Incarnation>, Expected);

/// Everything that a namespaces shard went through.
pub(crate) struct Replayed {
    /// Before the first entry, and after each.
    pub(crate) states: Vec<Names>,
    /// What creations came to, by their description, which names the call.
    pub(crate) creates: BTreeMap<String, Vec<(usize, Expected)>>,
    /// What deletions of a name came to, and of which incarnation.
    pub(crate) deletes: BTreeMap<(AccountId, String), Vec<Deletion>>,
}

/// Runs every command, and compares every answer.
pub(crate) fn replay(shard: &str, entries: &[Entry], findings: &mut Vec<String>) -> Replayed {
    let mut replayed = Replayed { states: vec![Names::default()], creates: BTreeMap::new(), deletes: BTreeMap::new() };
    let mut names = Names::default();
    for (at, entry) in entries.iter().enumerate() {
        for (command, reply) in entry.commands.iter().zip(&entry.replies) {
            let (Ok(command), Ok(reply)) = (codec::decode::<Command>(command), codec::decode::<Reply>(reply)) else {
                findings.push(format!("{shard}: [names] entry {at} has a command or reply that can't be read"));
                continue;
            };
            let expected = names.apply(&command);
            let seen = seen(&reply);
            let fits = match (&expected, &seen) {
                (Some(Expected::Namespace { incarnation: None }), Some(Expected::Namespace { .. })) => true,
                (expected, seen) => expected.is_some() && expected == seen,
            };
            if !fits {
                findings
                    .push(format!("{shard}: [names] entry {at} {command:?} was answered {reply:?}, not {expected:?}"));
            }
            let (Command::Namespaces(command), Some(seen)) = (command.inner(), seen) else { continue };
            replayed.index(at, command, &mut names, seen, &mut |what| {
                findings.push(format!("{shard}: [names] entry {at} {what}"));
            });
        }
        replayed.states.push(names.clone());
    }
    replayed
}

impl Replayed {
    fn index(
        &mut self,
        at: usize,
        command: &NamespacesCommand,
        names: &mut Names,
        seen: Expected,
        find: &mut dyn FnMut(String),
    ) {
        match command {
            NamespacesCommand::Create { request_id, account, name, description } => {
                if let Expected::Namespace { incarnation: Some(life) } = &seen
                    && names.get(*account, name).is_none()
                    && !names.was_made(request_id)
                    && !names.created(*request_id, *account, name, *life)
                {
                    find(format!("gives incarnation {life} again"));
                }
                self.creates.entry(description.clone()).or_default().push((at, seen));
            }
            NamespacesCommand::Delete { account, name, incarnation } => {
                self.deletes.entry((*account, name.clone())).or_default().push((at, *incarnation, seen));
            }
            _ => {}
        }
    }
}

fn seen(reply: &Reply) -> Option<Expected> {
    Some(match &reply.outcome {
        Ok(Answer::Namespace(namespace)) => Expected::Namespace { incarnation: Some(namespace.incarnation) },
        Ok(Answer::Done) => Expected::Done,
        Err(Refusal::NamespaceTaken(_)) => Expected::Taken,
        Err(Refusal::NamespaceNotFound) => Expected::NotFound,
        Err(Refusal::AccountNotFound(_)) => Expected::AccountNotFound,
        _ => return None,
    })
}
