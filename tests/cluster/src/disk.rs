//! A small disk for one node, which can be filled, freed, and made to fail.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::net_ns::NetNs;

/// What a node keeps its data on.
#[derive(Clone, Copy, Debug)]
pub enum DiskKind {
    /// A file system in memory of so many MiB.
    Small(u32),
    /// A file system of so many MiB on a block device that can be made to fail: it lies in a file that need not get the
    /// space it was promised.
    Failing(u32),
}

/// A file system in the room of a node; it goes with the room.
#[derive(Debug)]
pub struct Disk {
    room: Arc<NetNs>,
    mount_point: PathBuf,
    /// Where the file of the block device is, if there is one.
    backing: Option<PathBuf>,
}

impl Disk {
    pub(crate) fn mount(room: Arc<NetNs>, mount_point: &Path, kind: DiskKind) -> Result<Self, String> {
        let mount_point = mount_point.to_owned();
        std::fs::create_dir_all(&mount_point).map_err(|error| error.to_string())?;
        let place = mount_point.display().to_string();
        let tmpfs = |size: u32, place: &str| {
            room.run("mount", &["-t", "tmpfs", "-o", &format!("size={size}m"), "tmpfs", place]).map(|_| ())
        };
        let backing = match kind {
            DiskKind::Small(mib) => {
                tmpfs(mib, &place)?;
                None
            }
            DiskKind::Failing(mib) => {
                let backing = mount_point.with_extension("backing");
                std::fs::create_dir_all(&backing).map_err(|error| error.to_string())?;
                tmpfs(2 * mib, &backing.display().to_string())?;
                let image = backing.join("image").display().to_string();
                room.run("truncate", &["--size", &format!("{mib}M"), &image])?;
                room.run("mkfs.ext4", &["-q", "-F", &image])?;
                room.run("mount", &["-o", "loop", &image, &place])?;
                Some(backing)
            }
        };
        Ok(Self { room, mount_point, backing })
    }

    /// Takes all space but so many bytes, beside the data. Panics when there is less.
    pub fn fill(&self, leave: u64) {
        fill(&self.room, &self.mount_point, leave);
    }

    /// Gives back what [`Disk::fill`] took.
    pub fn free(&self) {
        std::fs::remove_file(self.room.path(&self.mount_point).join(FILLER)).expect("what was taken can be given back");
    }

    /// From now on nothing new can be written: the block device answers with an error.
    pub fn fail(&self) {
        fill(&self.room, self.backing.as_ref().expect("the disk is of the kind that fails"), 0);
    }
}

const FILLER: &str = "filler";

fn fill(room: &NetNs, at: &Path, leave: u64) {
    // What a file system needs for itself can't be allocated; where nothing is to be left, writing finds the last of it.
    let script = "free=$(df --output=avail -B1 \"$0\" | tail -n 1); fallocate -l $((free - $2)) \"$0/$1\" || \
                  { [ \"$2\" = 0 ] && { cat /dev/zero >\"$0/$1\" || true; }; }";
    let place = at.display().to_string();
    room.run("sh", &["-c", script, &place, FILLER, &leave.to_string()]).expect("space can be taken");
}
