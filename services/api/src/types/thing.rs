//! Names of things of other kinds than locks.

use super::{LockName, PageRequest};

/// A thing in a namespace; the call says of which kind.
#[derive(Clone, Debug)]
pub struct ThingName {
    /// The namespace.
    pub namespace: String,
    /// Its name or path. The path has at least one segment.
    pub name: LockName,
}

/// A list of all things of a kind, in order of path.
#[derive(Clone, Debug, Default)]
pub struct ListThings {
    /// The namespace.
    pub namespace: String,
    /// Segments of the path at and below which to list; empty for the whole namespace.
    pub prefix: Vec<String>,
    /// The page.
    pub page: PageRequest,
}
