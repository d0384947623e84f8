//! Atomic writes of files.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Replaces a file atomically. The new content is on disk when this returns.
pub(crate) fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = directory.join(format!(".{name}.new"));
    let mut file = File::create(&draft)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    File::open(directory)?.sync_all()
}
