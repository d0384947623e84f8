//! The holds of one path.

use holdfast_types::{FencingToken, Mode};

/// A hold of a session.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) mode: Mode,
    /// The thread of the session that has it; unknown for holds that the client listed after a resume.
    pub(super) holder: Option<Option<String>>,
    /// The client listed it after a resume: requests from before, which are unknown here, may claim it too.
    pub(super) is_listed: bool,
}

impl Hold {
    /// Returns the thread of the session that had it, if one is known.
    pub(super) fn into_holder(self) -> Option<String> {
        self.holder.flatten()
    }
}

/// The holds that a session has of one path, in order of token: nearly always one, so that no more memory is taken. A
/// token names a hold of a path: each grant has its own.
#[derive(Debug, Default)]
pub(super) struct PathHolds(Vec<(FencingToken, Hold)>);

impl PathHolds {
    fn find(&self, token: FencingToken) -> Result<usize, usize> {
        self.0.binary_search_by_key(&token, |(token, _)| *token)
    }

    /// Adds a hold, or replaces the one with this token.
    pub(super) fn insert(&mut self, token: FencingToken, hold: Hold) {
        match self.find(token) {
            Ok(at) => self.0[at].1 = hold,
            Err(at) => {
                if self.0.is_empty() {
                    self.0.reserve_exact(1);
                }
                self.0.insert(at, (token, hold));
            }
        }
    }

    pub(super) fn get(&self, token: FencingToken) -> Option<&Hold> {
        self.find(token).ok().map(|at| &self.0[at].1)
    }

    pub(super) fn get_mut(&mut self, token: FencingToken) -> Option<&mut Hold> {
        self.find(token).ok().map(|at| &mut self.0[at].1)
    }

    pub(super) fn remove(&mut self, token: FencingToken) -> Option<Hold> {
        self.find(token).ok().map(|at| self.0.remove(at).1)
    }

    /// Keeps only some of them.
    pub(super) fn retain(&mut self, is_kept: impl Fn(FencingToken, &Hold) -> bool) {
        self.0.retain(|(token, hold)| is_kept(*token, hold));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all, in order of token.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (FencingToken, &Hold)> {
        self.0.iter().map(|(token, hold)| (*token, hold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(holder: &str) -> Hold {
        Hold { mode: Mode::Read, holder: Some(Some(holder.to_owned())), is_listed: false }
    }

    fn tokens(holds: &PathHolds) -> Vec<FencingToken> {
        holds.iter().map(|(token, _)| token).collect()
    }

    #[test]
    fn holds_are_in_order_of_token_and_one_takes_the_memory_of_one() {
        let mut holds = PathHolds::default();
        holds.insert(5, hold("a"));
        assert_eq!(holds.0.capacity(), 1);
        holds.insert(9, hold("b"));
        holds.insert(7, hold("c"));
        holds.insert(7, hold("d"));
        assert_eq!(tokens(&holds), [5, 7, 9]);
        assert_eq!(holds.get(7).and_then(|hold| hold.holder.clone()), Some(Some("d".to_owned())));
        holds.get_mut(9).unwrap().is_listed = true;
        assert!(holds.get(9).unwrap().is_listed && holds.get(8).is_none());
        holds.retain(|token, hold| token == 5 || hold.is_listed);
        assert_eq!(tokens(&holds), [5, 9]);
        assert_eq!(holds.remove(5).and_then(Hold::into_holder), Some("a".to_owned()));
        assert!(holds.remove(5).is_none() && !holds.is_empty());
    }
}
