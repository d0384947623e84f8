//! Folders for what tests write.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

const PREFIX: &str = "holdfast-scratch-";
/// Waits until its input closes, which happens when this process ends. Programs that are still stopping may write a
/// little longer, so it tries several times.
const CLEANUP_SCRIPT: &str = r#"cat >/dev/null; n=0; while [ -e "$1" ] && [ "$n" -lt 300 ]; do
    rm -rf "$1" 2>/dev/null; n=$((n+1)); sleep 0.1; done"#;

/// A folder that is removed with this value. It remains if a test panics, or with `HOLDFAST_KEEP_DATA`.
#[derive(Debug)]
pub struct Scratch {
    /// Always there until this value is dropped.
    dir: Option<TempDir>,
}

impl Scratch {
    /// Creates a folder among the temporary files.
    ///
    /// # Panics
    /// If it can't be created.
    pub fn new() -> Self {
        Self::new_in(&std::env::temp_dir())
    }

    /// Creates a folder in that folder.
    ///
    /// # Panics
    /// If it can't be created.
    pub fn new_in(parent: &Path) -> Self {
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent);
        let dir = dir.unwrap_or_else(|error| panic!("no folder can be created in {}: {error}", parent.display()));
        Self { dir: Some(dir) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.as_ref().map(TempDir::path).expect("it is there until this value is dropped")
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let keep = std::thread::panicking() || std::env::var_os("HOLDFAST_KEEP_DATA").is_some();
        if let (true, Some(dir)) = (keep, self.dir.take()) {
            eprintln!("data and logs of the processes are kept in {}", dir.keep().display());
        }
    }
}

/// Returns the bytes of all files below a folder.
///
/// # Errors
/// If it can't be read.
pub fn folder_bytes(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let size = match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => folder_bytes(&entry.path()),
            file => file.map(|metadata| metadata.len()),
        };
        match size {
            Ok(size) => bytes += size,
            // It may go between the listing and the look.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

struct ProcessScratch {
    root: PathBuf,
    next: AtomicU32,
    /// Holds the input of the shell that removes the folder open while this process runs.
    _cleanup: Child,
}

static PROCESS_SCRATCH: OnceLock<ProcessScratch> = OnceLock::new();

/// Returns a path at which nothing exists yet, in a folder that is removed when this process ends, however it does.
///
/// # Panics
/// If the folder can't be created.
pub fn scratch() -> PathBuf {
    let scratch = PROCESS_SCRATCH.get_or_init(|| {
        let root = tempfile::Builder::new().prefix(PREFIX).tempdir();
        let root = root.expect("the system has space for temporary files").keep();
        let cleanup = spawn_cleanup(&root);
        ProcessScratch { root, next: AtomicU32::new(0), _cleanup: cleanup }
    });
    scratch.root.join(scratch.next.fetch_add(1, Ordering::Relaxed).to_string())
}

/// In a process group of its own, so that Ctrl-C in a terminal does not end it with the tests.
fn spawn_cleanup(root: &Path) -> Child {
    let mut shell = Command::new("sh");
    shell.args(["-c", CLEANUP_SCRIPT, "cleanup"]).arg(root).process_group(0);
    shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.spawn().expect("there is a shell")
}
