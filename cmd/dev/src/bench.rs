//! `dev bench`: runs the benchmark, a separate program, so that this one links neither the service nor its peers.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

const PROGRAM: &str = "holdfast-bench";

/// Flags of `dev bench`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct BenchArgs {
    /// Flags of the benchmark, which `dev bench --help` lists.
    #[arg(
        env = "HOLDFAST_BENCH_FLAGS",
        value_name = "FLAG",
        value_delimiter = ' ',
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    flags: Vec<OsString>,
}

/// Replaces this process with the benchmark; returns only on failure.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let own = std::env::current_exe().context("this program's own file can't be found")?;
    let program = own.with_file_name(PROGRAM);
    ensure!(program.is_file(), "the program {} is missing: run `make build`", program.display());
    let error = Command::new(&program).args(&args.flags).exec();
    Err(error).with_context(|| format!("{} can't be started", program.display()))
}
