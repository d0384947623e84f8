//! Generated from `proto/`: what is called of etcd.

#[allow(missing_docs, unreachable_pub, clippy::all, rustdoc::all)]
pub(crate) mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");
}

#[allow(missing_docs, unreachable_pub, clippy::all, rustdoc::all)]
pub(crate) mod v3lockpb {
    tonic::include_proto!("v3lockpb");
}
