//! Finding the programs, and running those that end by themselves.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Names the folder with the programs when it is not the one above the tests.
const BIN_DIR: &str = "HOLDFAST_BIN_DIR";
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How long a program that cannot start may take to say so.
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);

/// How a program ended.
#[derive(Debug)]
pub struct ProgramExit {
    /// Whether its exit status was 0.
    pub success: bool,
    /// What it wrote, to both of its outputs.
    pub output: String,
}

/// Where a program is: where cargo leaves those of the same build, or where `HOLDFAST_BIN_DIR` says.
///
/// # Panics
/// When it is not there: nothing could be tested.
pub fn program(name: &str) -> PathBuf {
    let folder = match std::env::var_os(BIN_DIR) {
        Some(folder) => PathBuf::from(folder),
        None => build_dir(),
    };
    let path = folder.join(name);
    assert!(
        path.is_file(),
        "{} is missing: build it first with `cargo build --workspace --bins` and the profile of the tests, \
         or name the folder with the programs in {BIN_DIR}",
        path.display()
    );
    path
}

/// Test programs lie in `target/<profile>/deps`, programs in `target/<profile>`. Examples in documentation run from
/// somewhere else, so that for them it counts where this crate was built: in `target/<profile>/build/<package>/out`.
fn build_dir() -> PathBuf {
    let tests = std::env::current_exe().expect("the system knows which program runs");
    match tests.parent() {
        Some(folder) if folder.ends_with("deps") => folder.join(".."),
        _ => Path::new(env!("OUT_DIR")).join("../../.."),
    }
}

/// A command for a program that takes nothing from the surroundings and ends with the tests.
pub(crate) fn command(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program(name));
    command.env_clear().args(arguments).arg("--exit-with-parent").stdin(Stdio::piped());
    command
}

/// Runs a program that is expected to end by itself, and returns what it said.
///
/// # Panics
/// When it does not end within a minute; it is killed then.
pub fn run_to_exit(name: &str, arguments: &[&str]) -> ProgramExit {
    let mut command = command(name, arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let ended = wait_for_exit(&mut child, EXIT_TIMEOUT);
    if !ended {
        kill(&mut child);
    }
    let mut output = String::new();
    for stream in [child.stdout.take().map(boxed), child.stderr.take().map(boxed)].into_iter().flatten() {
        let mut stream = stream;
        stream.read_to_string(&mut output).expect("what a program says is text");
    }
    assert!(ended, "{name} {arguments:?} did not end by itself; it said:\n{output}");
    let status = child.wait().expect("the program has ended");
    ProgramExit { success: status.success(), output }
}

fn boxed<R: Read + 'static>(stream: R) -> Box<dyn Read> {
    Box::new(stream)
}

/// Whether the program ended in time.
pub(crate) fn wait_for_exit(child: &mut Child, within: Duration) -> bool {
    let deadline = Instant::now() + within;
    loop {
        if child.try_wait().expect("a child can be waited for").is_some() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

pub(crate) fn kill(child: &mut Child) {
    // It may have ended already, which is what is wanted.
    let _ = child.kill();
    let _ = child.wait();
}
