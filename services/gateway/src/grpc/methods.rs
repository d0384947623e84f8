//! The existing gRPC methods, so that metrics have labels for these only.

use std::collections::HashSet;
use std::sync::Arc;

use holdfast_proto::{DLOCKS_FILE_DESCRIPTOR_SET, V1_FILE_DESCRIPTOR_SET};
use prost::Message;
use prost_types::FileDescriptorSet;

use super::DescriptorsError;

/// Paths of known methods, like `/holdfast.v1.LocksService/AcquireLock`.
#[derive(Debug)]
pub(crate) struct Methods {
    known: HashSet<Arc<str>>,
    unmatched: Arc<str>,
}

impl Methods {
    /// Returns the methods of the public API, the compatible frontends and health.
    pub(crate) fn from_descriptors() -> Result<Self, DescriptorsError> {
        let mut known = HashSet::new();
        for encoded in [V1_FILE_DESCRIPTOR_SET, DLOCKS_FILE_DESCRIPTOR_SET, tonic_health::pb::FILE_DESCRIPTOR_SET] {
            let set = FileDescriptorSet::decode(encoded).map_err(DescriptorsError::new)?;
            for file in &set.file {
                for service in &file.service {
                    let paths = service.method.iter().map(|method| {
                        Arc::<str>::from(format!("/{}.{}/{}", file.package(), service.name(), method.name()))
                    });
                    known.extend(paths);
                }
            }
        }
        Ok(Self { known, unmatched: Arc::from("unmatched") })
    }

    /// Returns the path of a known method, else `unmatched`.
    pub(crate) fn label(&self, path: &str) -> Arc<str> {
        Arc::clone(self.known.get(path).unwrap_or(&self.unmatched))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_methods_that_exist_become_labels() {
        let methods = Methods::from_descriptors().unwrap();
        for path in [
            "/holdfast.v1.AccountsService/CreateApiKey",
            "/holdfast.v1.AccountsService/GetCluster",
            "/holdfast.v1.NamespacesService/ListNamespaces",
            "/holdfast.v1.LocksService/AcquireLock",
            "/holdfast.v1.LocksService/Await",
            "/holdfast.v1.LocksService/ListWaits",
            "/holdfast.v1.LatchesService/WaitForLatch",
            "/holdfast.v1.PoolsService/TakeMembers",
            "/holdfast.v1.SemaphoresService/AcquirePermits",
            "/holdfast.v1.BarriersService/ArriveAtBarrier",
            "/com.evrblk.monstera_example.gatewaypb.LocksServiceApi/AcquireLock",
            "/grpc.health.v1.Health/Check",
        ] {
            assert_eq!(&*methods.label(path), path);
        }
        assert_eq!(&*methods.label("/holdfast.v1.LocksService/Made-Up"), "unmatched");
    }
}
