//! `holdfast-bench`: measures the service, and its peers beside it.

use anyhow::{Result, bail};
use clap::Parser;
use holdfast_bench::Options;
use tokio::signal::unix::{SignalKind, signal};

/// Measures the service in real processes on this machine, and its peers beside it in the same run.
#[derive(Debug, Parser)]
#[command(name = "holdfast-bench", version)]
struct Args {
    #[command(flatten)]
    options: Options,
}

fn main() -> Result<()> {
    let options = Args::parse().options;
    // Few threads: the load must leave the machine to the servers, which run on it too.
    let threads = options.load_threads.max(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let result = runtime.block_on(async {
        tokio::select! {
            result = holdfast_bench::run(&options) => result,
            // Dropping the run ends every process and removes its data.
            result = wait_for_signal() => result,
        }
    });
    runtime.shutdown_background();
    result
}

/// Ends with an error when the process gets a signal to stop.
async fn wait_for_signal() -> Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminated.recv() => bail!("terminated"),
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            bail!("interrupted")
        }
    }
}
