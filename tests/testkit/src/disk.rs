//! A small disk of one node, which can be filled, freed, and made to fail.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::net_ns::NetNs;

/// The kind of a disk.
#[derive(Clone, Copy, Debug)]
pub enum DiskKind {
    /// A file system in memory, of so many MiB.
    Small(u32),
    /// A file system of so many MiB on a block device that can be made to fail: its file is sparse, and the space for it
    /// can be taken away.
    Failing(u32),
}

/// A file system in the namespace of a node, which exists as long as that.
#[derive(Debug)]
pub struct Disk {
    net_ns: Arc<NetNs>,
    mount_point: PathBuf,
    /// The folder with the file of the block device, if there is one.
    backing: Option<PathBuf>,
}

impl Disk {
    pub(crate) fn mount(net_ns: Arc<NetNs>, mount_point: &Path, kind: DiskKind) -> Result<Self, String> {
        let mount_point = mount_point.to_owned();
        std::fs::create_dir_all(&mount_point).map_err(|error| error.to_string())?;
        let mounted = mount_point.display().to_string();
        let tmpfs = |size: u32, mounted: &str| {
            net_ns.run("mount", &["-t", "tmpfs", "-o", &format!("size={size}m"), "tmpfs", mounted]).map(|_| ())
        };
        let backing = match kind {
            DiskKind::Small(mib) => {
                tmpfs(mib, &mounted)?;
                None
            }
            DiskKind::Failing(mib) => {
                let backing = mount_point.with_extension("backing");
                std::fs::create_dir_all(&backing).map_err(|error| error.to_string())?;
                tmpfs(2 * mib, &backing.display().to_string())?;
                let image = backing.join("image").display().to_string();
                net_ns.run("truncate", &["--size", &format!("{mib}M"), &image])?;
                net_ns.run("mkfs.ext4", &["-q", "-F", &image])?;
                net_ns.run("mount", &["-o", "loop", &image, &mounted])?;
                Some(backing)
            }
        };
        Ok(Self { net_ns, mount_point, backing })
    }

    /// Takes all space but so many bytes.
    ///
    /// # Panics
    /// If there is less.
    pub fn fill(&self, leave: u64) {
        fill(&self.net_ns, &self.mount_point, leave);
    }

    /// Releases the space that [`Disk::fill`] took.
    ///
    /// # Panics
    /// If none was taken.
    pub fn free(&self) {
        std::fs::remove_file(self.net_ns.path(&self.mount_point).join(FILLER)).expect("the file can be removed");
    }

    /// From now on nothing new can be written: the block device returns an error.
    ///
    /// # Panics
    /// If it is not of the kind that fails.
    pub fn fail(&self) {
        fill(&self.net_ns, self.backing.as_ref().expect("the disk is of the kind that fails"), 0);
    }
}

const FILLER: &str = "filler";

fn fill(net_ns: &NetNs, at: &Path, leave: u64) {
    // The space that a file system reserves for itself can't be allocated, but writing takes it if nothing is to be left.
    let script = "free=$(df --output=avail -B1 \"$0\" | tail -n 1); fallocate -l $((free - $2)) \"$0/$1\" || \
                  { [ \"$2\" = 0 ] && { cat /dev/zero >\"$0/$1\" || true; }; }";
    let mounted = at.display().to_string();
    net_ns.run("sh", &["-c", script, &mounted, FILLER, &leave.to_string()]).expect("space can be taken");
}
