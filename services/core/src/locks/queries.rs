//! What can be asked of a locks shard.

use std::ops::Bound;

use super::namespace::Namespace;
use super::{LocksCore, view};
use crate::{Answer, FencingToken, MAX_PAGE_BYTES, MAX_READERS_SHOWN, NamespaceRef, Path, Query, Refusal, codec, page};

impl LocksCore {
    /// Nothing for queries of other applications.
    pub(crate) fn query(&self, query: &Query) -> Option<Result<Answer, Refusal>> {
        Some(match query {
            Query::Lock { namespace, path } => self.lock(namespace, path),
            Query::Locks { namespace, prefix, after, limit } => {
                self.find(namespace).map(|(_, namespace)| page_of_locks(namespace, prefix, after.as_ref(), *limit))
            }
            Query::Check { namespace, path, fencing_token } => self.check(namespace, path, *fencing_token),
            _ => return None,
        })
    }

    fn lock(&self, namespace: &NamespaceRef, path: &Path) -> Result<Answer, Refusal> {
        let (key, _) = self.find(namespace)?;
        Ok(Answer::Lock(self.view(key, path, usize::MAX)))
    }

    fn check(&self, namespace: &NamespaceRef, path: &Path, token: FencingToken) -> Result<Answer, Refusal> {
        let (key, namespace) = self.find(namespace)?;
        let lock = namespace.locks.get(path);
        let hold = lock.and_then(|lock| lock.position_of_token(token).map(|index| &lock.holds[index]));
        let current = hold.is_some_and(|hold| hold.is_held());
        Ok(Answer::Checked { current, lock: self.view(key, path, MAX_READERS_SHOWN) })
    }
}

/// All paths under a prefix follow it directly in the order of paths.
fn page_of_locks(namespace: &Namespace, prefix: &Path, after: Option<&Path>, limit: u32) -> Answer {
    let start = match after {
        Some(after) if after >= prefix => Bound::Excluded(after),
        _ => Bound::Included(prefix),
    };
    let under = namespace.locks.range::<Path, _>((start, Bound::Unbounded));
    let under = under.take_while(|(path, _)| prefix.is_prefix_of(path));
    let (rows, mut more) = page::cut(under, limit);
    let mut locks = Vec::with_capacity(rows.len());
    let mut bytes = 0;
    for (path, lock) in rows {
        let shown = view::view_of_held(path, lock, MAX_READERS_SHOWN);
        bytes += codec::encode(&shown).len();
        if bytes > MAX_PAGE_BYTES && !locks.is_empty() {
            more = true;
            break;
        }
        locks.push(shown);
    }
    Answer::Locks { locks, more }
}
