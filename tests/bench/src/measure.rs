//! What the servers used: CPU, bytes, syncs, memory.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use procfs::process::Process;

/// What a system reports about its own storage. Counters since its start; none if it does not report them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Storage {
    /// Syncs of files.
    pub syncs: Option<f64>,
    /// Bytes handed to the storage.
    pub bytes: Option<f64>,
}

/// Counters of a system's processes at one time.
#[derive(Clone, Debug)]
pub struct Sample {
    /// CPU seconds, in user mode and in the kernel, by process.
    cpu_seconds: BTreeMap<String, f64>,
    /// Bytes that the processes caused to be written to the disk, as the kernel counts them: whole pages.
    written_bytes: f64,
    rss_bytes: f64,
    own_cpu_seconds: f64,
}

/// What was used between two samples.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// CPU seconds by process.
    pub cpu_seconds: BTreeMap<String, f64>,
    /// CPU seconds of the load itself.
    pub own_cpu_seconds: f64,
    /// Bytes written to the disk.
    pub written_bytes: f64,
    /// Resident memory of all processes at the end.
    pub rss_bytes: f64,
}

impl Sample {
    /// Samples the processes now.
    ///
    /// # Errors
    /// When one is gone.
    pub fn take(pids: &[(String, i32)]) -> Result<Self> {
        let mut cpu_seconds = BTreeMap::new();
        let (mut written_bytes, mut rss_bytes) = (0.0, 0.0);
        for (name, pid) in pids {
            let process = Process::new(*pid).with_context(|| format!("{name} is gone"))?;
            cpu_seconds.insert(name.clone(), cpu_of(&process)?);
            written_bytes += process.io()?.write_bytes as f64;
            rss_bytes += rss_of(&process)?;
        }
        Ok(Self { cpu_seconds, written_bytes, rss_bytes, own_cpu_seconds: cpu_of(&Process::myself()?)? })
    }

    /// What was used since an earlier sample of the same processes.
    pub fn since(&self, earlier: &Self) -> Usage {
        let used = |(name, now): (&String, &f64)| {
            let before = earlier.cpu_seconds.get(name).copied().unwrap_or_default();
            (name.clone(), now - before)
        };
        Usage {
            cpu_seconds: self.cpu_seconds.iter().map(used).collect(),
            own_cpu_seconds: self.own_cpu_seconds - earlier.own_cpu_seconds,
            written_bytes: self.written_bytes - earlier.written_bytes,
            rss_bytes: self.rss_bytes,
        }
    }
}

/// Resident memory of a process, in bytes.
///
/// # Errors
/// When it is gone.
pub fn rss_bytes(pid: i32) -> Result<f64> {
    rss_of(&Process::new(pid)?)
}

fn rss_of(process: &Process) -> Result<f64> {
    let kib = process.status()?.vmrss.context("a process has resident memory")?;
    Ok(kib as f64 * 1_024.0)
}

fn cpu_of(process: &Process) -> Result<f64> {
    let stat = process.stat()?;
    Ok((stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_cpu_and_memory() {
        let pids = [("own".to_owned(), i32::try_from(std::process::id()).unwrap())];
        let first = Sample::take(&pids).unwrap();
        let used = Sample::take(&pids).unwrap().since(&first);
        assert!(used.rss_bytes > 100_000.0);
        assert!(used.cpu_seconds["own"] >= 0.0);
    }
}
