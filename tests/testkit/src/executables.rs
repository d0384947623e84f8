//! Finds programs, and runs those that end by themselves.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::net_ns::run_command;
use crate::program::Program;
use crate::scratch::scratch;

/// Names the folder with the programs, instead of the folder of the build.
const BIN_DIR: &str = "HOLDFAST_BIN_DIR";
/// How long a program that can't start may take to say so, on a busy machine.
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);

/// How a program ended.
#[derive(Debug)]
pub struct ProgramExit {
    /// Whether its exit status was 0.
    pub success: bool,
    /// What it wrote to standard output and standard error.
    pub output: String,
}

/// Returns the file of a program of Holdfast: in `HOLDFAST_BIN_DIR`, or else in the build that this program is of.
///
/// # Panics
/// If it is missing.
pub fn executable(name: &str) -> PathBuf {
    let folder = match std::env::var_os(BIN_DIR) {
        Some(folder) => PathBuf::from(folder),
        None => build_dir(name),
    };
    let path = folder.join(name);
    assert!(
        path.is_file(),
        "the program {} is missing: run `make build`, or name the folder with the programs in {BIN_DIR}",
        path.display()
    );
    path
}

/// Test programs are in `target/<profile>/deps` and programs in `target/<profile>`; the benchmark is beside the others,
/// also when they are installed. Examples in documentation run elsewhere, so this crate's own build folder counts, which
/// is `target/<profile>/build/<package>/out`.
fn build_dir(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("the system knows which program runs");
    match own.parent() {
        Some(folder) if folder.ends_with("deps") => folder.join(".."),
        Some(folder) if folder.join(name).is_file() => folder.to_owned(),
        _ => Path::new(env!("OUT_DIR")).join("../../.."),
    }
}

/// Returns the file of a program of this machine, such as `etcd`, if it is installed.
pub fn find_installed(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Runs a program that is expected to end by itself.
///
/// # Panics
/// If it does not end within a minute; it is killed then.
pub fn run_to_exit(name: &str, arguments: &[&str]) -> ProgramExit {
    let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
    let mut program = Program::new(name, name, arguments, &scratch());
    program.start();
    let status = program.wait_for_exit_blocking(EXIT_TIMEOUT);
    let output = program.log();
    let status = status.unwrap_or_else(|| panic!("{name} did not end within {EXIT_TIMEOUT:?}; its output:\n{output}"));
    ProgramExit { success: status.success(), output }
}

/// Runs `dev`, and returns its output.
///
/// # Errors
/// If it fails: its standard error.
pub fn run_dev(arguments: &[&str]) -> Result<String, String> {
    run_tool("dev", arguments)
}

/// Runs `holdfast-admin`, and returns its output.
///
/// # Errors
/// If it fails: its standard error.
pub fn run_admin(arguments: &[&str]) -> Result<String, String> {
    run_tool("holdfast-admin", arguments)
}

fn run_tool(name: &str, arguments: &[&str]) -> Result<String, String> {
    let mut words = vec![executable(name).display().to_string()];
    words.extend(arguments.iter().map(|&argument| argument.to_owned()));
    run_command(&words)
}
