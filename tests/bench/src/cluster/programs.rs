//! Where the programs are.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

/// The program of that name: in `HOLDFAST_BIN_DIR`, or else beside this one.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    let dir = match std::env::var_os("HOLDFAST_BIN_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => {
            let own = std::env::current_exe().context("this program's own file can't be found")?;
            own.parent().context("this program lies in no folder")?.to_owned()
        }
    };
    let path = dir.join(name);
    ensure!(
        path.is_file(),
        "the program {} is missing: run `make build`, or name the folder with the programs in HOLDFAST_BIN_DIR",
        path.display()
    );
    Ok(path)
}

/// A program of the machine, like `etcd`.
pub(crate) fn find_installed(name: &str, package: &str) -> Result<PathBuf> {
    let places = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&places).map(|place| place.join(name)).find(|path| path.is_file());
    found.with_context(|| format!("the program {name} is missing: install the package {package}"))
}
