//! Lock names, and the name of this process.

use clap::Args;
use holdfast_client::Path;

/// A lock.
#[derive(Clone, Debug, Args)]
pub(crate) struct LockName {
    /// The lock. A name is one segment, whatever characters it contains.
    #[arg(value_name = "NAME")]
    name: String,
    /// Interpret NAME as a path in the tree of locks, with segments separated by slashes; `/` is the whole namespace.
    #[arg(long)]
    path: bool,
}

impl LockName {
    pub(crate) fn path(&self) -> Path {
        if self.path { parse_path(&self.name) } else { Path::from(self.name.as_str()) }
    }
}

/// A thing of another kind than locks.
#[derive(Clone, Debug, Args)]
pub(crate) struct ThingName {
    /// Its name. A name is one segment, whatever characters it contains.
    #[arg(value_name = "NAME")]
    name: String,
    /// Interpret NAME as a path, with segments separated by slashes.
    #[arg(long)]
    path: bool,
}

impl ThingName {
    pub(crate) fn path(&self) -> Path {
        if self.path { parse_path(&self.name) } else { Path::from(self.name.as_str()) }
    }
}

/// Parses a path with segments separated by slashes.
pub(crate) fn parse_path(text: &str) -> Path {
    Path::of(text.split('/').filter(|segment| !segment.is_empty()))
}

/// Returns the path as the protocol encodes it: segments, and whether it is the whole namespace.
pub(crate) fn parts(path: &Path) -> (Vec<String>, bool) {
    (path.segments().to_vec(), path.segments().is_empty())
}

/// Returns the name of this process for other clients: user, host and process number.
pub(crate) fn process_id() -> String {
    format!("{}:{}", user_at_host(), std::process::id())
}

/// Returns the user and the machine.
pub(crate) fn user_at_host() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    let user = user.unwrap_or_else(|_| format!("uid-{}", rustix::process::getuid().as_raw()));
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut who = format!("{user}@{host}");
    // With the process number it must fit into 128 bytes.
    while who.len() > 90 {
        who.pop();
    }
    who
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_segment_unless_it_is_said_to_be_a_path() {
        let name = |name: &str, path| LockName { name: name.to_owned(), path }.path();
        assert_eq!(name("a/b", false), Path::from("a/b"));
        assert_eq!(name("a/b", true), Path::of(["a", "b"]));
        assert_eq!(name("/", true), Path::whole_namespace());
    }
}
