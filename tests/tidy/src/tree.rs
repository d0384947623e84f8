//! The files of the source tree.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// What lies at the root and is made, not written.
const GENERATED: [&str; 4] = ["target", "bin", "data", "Cargo.lock"];
/// What is made wherever it lies.
const GENERATED_ANYWHERE: [&str; 2] = ["node_modules", "__pycache__"];
/// Hidden directories that somebody wrote. Others belong to tools, or come and go with a test that is running.
const KNOWN_HIDDEN_DIRS: [&str; 3] = [".ci", ".github", ".cargo"];

/// A text file of the tree.
#[derive(Debug)]
pub struct SourceFile {
    /// From the root of the workspace.
    pub path: PathBuf,
    /// Its content.
    pub text: String,
}

impl SourceFile {
    /// Whether it is Rust that somebody wrote.
    pub fn is_rust(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == "rs") && !self.text.starts_with("// @generated")
    }
}

/// All text files below the root, sorted by path, without what is made or logged.
///
/// # Errors
/// When a file or directory cannot be read.
pub fn files(root: &Path) -> Result<Vec<SourceFile>> {
    let mut found = Vec::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        let listed = fs::read_dir(root.join(&directory)).with_context(|| directory.display().to_string())?;
        for entry in listed {
            let entry = entry?;
            let path = directory.join(entry.file_name());
            let kind = entry.file_type()?;
            if is_generated(&path) || (kind.is_dir() && is_unknown_hidden_dir(&path)) {
                continue;
            }
            if kind.is_dir() {
                directories.push(path);
            } else if kind.is_file() {
                let bytes = fs::read(root.join(&path)).with_context(|| path.display().to_string())?;
                if let Ok(text) = String::from_utf8(bytes) {
                    found.push(SourceFile { path, text });
                }
            }
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

fn is_generated(path: &Path) -> bool {
    let at_root = GENERATED.iter().any(|made| path == Path::new(made));
    let anywhere = path.file_name().is_some_and(|name| GENERATED_ANYWHERE.iter().any(|made| name == *made));
    at_root || anywhere || path.extension().is_some_and(|extension| extension == "log")
}

fn is_unknown_hidden_dir(directory: &Path) -> bool {
    let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.starts_with('.') && !KNOWN_HIDDEN_DIRS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_wrote_is_listed_and_what_is_made_is_not() {
        let root = crate::root();
        let paths: Vec<PathBuf> = files(&root).unwrap().into_iter().map(|file| file.path).collect();
        let has = |path: &str| paths.iter().any(|known| known == Path::new(path));
        assert!(has("Makefile") && has(".ci/run") && has("tests/tidy/src/tree.rs"));
        assert!(!has("Cargo.lock") && !paths.iter().any(|path| path.starts_with(".git") || path.starts_with("target")));
        assert!(is_generated(Path::new("bin")) && !is_generated(Path::new("services/x/src/bin")));
    }
}
