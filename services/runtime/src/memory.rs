//! Memory limits of a program's data.

use bytesize::ByteSize;
use clap::Args;
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// Default limit as a percentage of the memory of the machine or the control group.
const DEFAULT_MEMORY_PERCENT: u64 = 70;

/// Flags about the memory limits.
#[derive(Debug, Clone, Args)]
pub struct MemoryArgs {
    /// Memory for the data of all accounts on this node, as 4GiB. From 80 % on, accounts with more than an equal share
    /// get nothing new; when it is used up, no account does [default: 70 % of the machine's or the cgroup's].
    #[arg(long, env = "HOLDFAST_MEMORY_LIMIT", value_name = "SIZE")]
    memory_limit: Option<ByteSize>,
    /// Memory for the lock tables of namespaces whose durability is SESSION, on this node and beside the memory limit.
    /// From 80 % on, accounts with more than an equal share get nothing new there; when it is used up, no account does.
    #[arg(long, env = "HOLDFAST_SOFT_MEMORY", default_value = "512MiB", value_name = "SIZE")]
    soft_memory: ByteSize,
}

impl MemoryArgs {
    /// Returns the limit of all accounts' state in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.memory_limit.map_or_else(|| available_bytes() / 100 * DEFAULT_MEMORY_PERCENT, |size| size.as_u64())
    }

    /// Returns the limit of lock tables that are in no log, in bytes.
    pub fn soft_bytes(&self) -> u64 {
        self.soft_memory.as_u64()
    }
}

/// Returns the bytes of the machine, or of this process's control group, whichever is less.
fn available_bytes() -> u64 {
    let kind = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(kind);
    let group = system.cgroup_limits().map(|limits| limits.total_memory).filter(|bytes| *bytes > 0);
    group.map_or(system.total_memory(), |bytes| bytes.min(system.total_memory()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        memory: MemoryArgs,
    }

    #[test]
    fn a_limit_is_a_size_and_otherwise_a_share_of_the_machine() {
        let program = Program::parse_from(["program", "--memory-limit", "3GiB"]);
        assert_eq!(program.memory.limit_bytes(), 3 << 30);
        let share = Program::parse_from(["program"]).memory.limit_bytes();
        assert_eq!(Program::parse_from(["program"]).memory.soft_bytes(), 512 << 20);
        assert_eq!(Program::parse_from(["program", "--soft-memory", "64KiB"]).memory.soft_bytes(), 64 << 10);
        assert!(share > 64 << 20 && share < available_bytes(), "{share} bytes");
    }
}
