//! The machine that a run was made on.

use std::fmt;

use anyhow::Result;
use procfs::{CpuInfo, Current, KernelVersion, LoadAverage, Meminfo};
use serde::{Deserialize, Serialize};

/// The machine, and how busy it was before the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the processor.
    pub processor: String,
    /// How many cores there are.
    pub cores: usize,
    /// Memory, in GiB.
    pub memory_gib: f64,
    /// Version of the kernel.
    pub kernel: String,
    /// Load average over a minute before the run: other programs that share the machine.
    pub load_before: f32,
}

impl Machine {
    /// Detects this machine.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn detect() -> Result<Self> {
        let processors = CpuInfo::current()?;
        let kernel = KernelVersion::current()?;
        Ok(Self {
            processor: processors.model_name(0).unwrap_or("unknown").to_owned(),
            cores: processors.num_cores(),
            memory_gib: Meminfo::current()?.mem_total as f64 / f64::from(1 << 30),
            kernel: format!("{}.{}.{}", kernel.major, kernel.minor, kernel.patch),
            load_before: LoadAverage::current()?.one,
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { processor, cores, memory_gib, kernel, load_before } = self;
        write!(f, "{cores} cores of {processor}, {memory_gib:.0} GiB, Linux {kernel}, load before {load_before:.1}")
    }
}
