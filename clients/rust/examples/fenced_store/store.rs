//! A store that rejects stale tokens: one file, shared by any number of processes.
//!
//! Whoever writes or reads shows the fencing token of its lock. A write with a token below any that was seen is
//! refused; so is a read with a token below that of the newest write. Tokens rise with every grant, so whoever shows a
//! lower one has lost its lock to somebody who has been here already.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

/// Why the store did not do something.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// Somebody with a later lock was here.
    #[error("token {given} is stale: {seen} was seen")]
    Stale {
        /// What was shown.
        given: u64,
        /// The higher one that was seen before.
        seen: u64,
    },
    /// The file cannot be used.
    #[error("the store cannot be used: {0}")]
    Io(#[from] io::Error),
}

/// What the file has: the highest tokens, then the text.
#[derive(Debug, Default)]
struct Content {
    /// The highest token of any kind.
    seen: u64,
    /// The highest token of a write.
    written: u64,
    text: String,
}

/// The store.
#[derive(Debug)]
pub(crate) struct FencedStore(File);

impl FencedStore {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        Ok(Self(OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?))
    }

    /// Replaces the text.
    ///
    /// # Errors
    /// [`StoreError::Stale`] when somebody with a later lock was here.
    pub(crate) fn put(&mut self, token: u64, text: &str) -> Result<(), StoreError> {
        self.exclusively(|content| {
            if token < content.seen {
                return Err(StoreError::Stale { given: token, seen: content.seen });
            }
            *content = Content { seen: token, written: token, text: text.to_owned() };
            Ok(())
        })
    }

    /// The text.
    ///
    /// # Errors
    /// [`StoreError::Stale`] when somebody with a later lock has written.
    pub(crate) fn get(&mut self, token: u64) -> Result<String, StoreError> {
        self.exclusively(|content| {
            if token < content.written {
                return Err(StoreError::Stale { given: token, seen: content.written });
            }
            content.seen = content.seen.max(token);
            Ok(content.text.clone())
        })
    }

    /// Compares and changes in one step: between the two nobody else is let in.
    fn exclusively<T>(&mut self, change: impl FnOnce(&mut Content) -> Result<T, StoreError>) -> Result<T, StoreError> {
        flock(&self.0, FlockOperation::LockExclusive).map_err(io::Error::from)?;
        let result = self.read().and_then(|mut content| {
            let result = change(&mut content)?;
            self.write(&content)?;
            Ok(result)
        });
        flock(&self.0, FlockOperation::Unlock).map_err(io::Error::from)?;
        result
    }

    fn read(&mut self) -> Result<Content, StoreError> {
        let mut whole = String::new();
        self.0.rewind()?;
        self.0.read_to_string(&mut whole)?;
        let mut parts = whole.splitn(3, '\n');
        let mut token = || parts.next().and_then(|part| part.parse().ok()).unwrap_or_default();
        Ok(Content { seen: token(), written: token(), text: parts.next().unwrap_or_default().to_owned() })
    }

    fn write(&mut self, content: &Content) -> Result<(), StoreError> {
        self.0.rewind()?;
        self.0.set_len(0)?;
        Ok(write!(self.0, "{}\n{}\n{}", content.seen, content.written, content.text)?)
    }
}
