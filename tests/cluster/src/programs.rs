//! Where the programs under test are.

use std::path::PathBuf;

use crate::net_ns::run_command;

/// The program of that name: in `HOLDFAST_BIN_DIR`, or else where cargo puts the programs of the build that this test
/// belongs to. Panics when it is not there.
pub(crate) fn program(name: &str) -> PathBuf {
    let dir = match std::env::var_os("HOLDFAST_BIN_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => build_dir(),
    };
    let path = dir.join(name);
    assert!(
        path.is_file(),
        "the program {} is missing: run `make test`, which builds it, or name the folder with the programs in \
         HOLDFAST_BIN_DIR",
        path.display()
    );
    path
}

/// Tests are built into the folder `deps` beside the programs.
fn build_dir() -> PathBuf {
    let test = std::env::current_exe().expect("a running program knows where it is");
    let beside = test.parent().and_then(|deps| deps.parent());
    beside.unwrap_or_else(|| panic!("{} lies in no build folder", test.display())).to_owned()
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
    let mut words = vec![program(name).display().to_string()];
    words.extend(arguments.iter().map(|&argument| argument.to_owned()));
    run_command(&words)
}
