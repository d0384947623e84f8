//! A folder for everything that the tests of this process write. It is removed when the process ends in whatever way.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Waits until its input closes, which it does with this process; programs that are still stopping may write a little
/// longer, so it looks again.
const CLEANUP_SCRIPT: &str = r#"cat >/dev/null; n=0; while [ -e "$1" ] && [ "$n" -lt 300 ]; do
    rm -rf "$1" 2>/dev/null; n=$((n+1)); sleep 0.1; done"#;

struct Scratch {
    root: PathBuf,
    next: AtomicU32,
    /// Holds the caretaker's input open as long as this process runs.
    _cleanup: Child,
}

static SCRATCH: OnceLock<Scratch> = OnceLock::new();

/// A path for a new folder, outside of the checkout; nothing is there yet.
pub fn scratch() -> PathBuf {
    let scratch = SCRATCH.get_or_init(|| {
        let root = tempfile::Builder::new().prefix("holdfast-api-tests-").tempdir();
        let root = root.expect("the system has room for temporary files").keep();
        let caretaker = spawn_cleanup(&root);
        Scratch { root, next: AtomicU32::new(0), _cleanup: caretaker }
    });
    scratch.root.join(scratch.next.fetch_add(1, Ordering::Relaxed).to_string())
}

/// In a process group of its own, so that Ctrl-C in a terminal does not end it with the tests.
fn spawn_cleanup(root: &Path) -> Child {
    let mut shell = Command::new("sh");
    shell.args(["-c", CLEANUP_SCRIPT, "caretaker"]).arg(root).process_group(0);
    shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.spawn().expect("there is a shell")
}
