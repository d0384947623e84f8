//! Every protocol that Holdfast speaks over gRPC, as generated code.
//!
//! Purpose: messages, clients and servers of the internal calls, of the public API and of the compatible frontends.
//!
//! Invariant: nothing here is written by hand but the module list; the `.proto` files are the contract, and field
//! numbers that were released are never used again.
//!
//! Deliberately unknown here: what the messages mean. Conversions live beside the frontends that need them.

/// Calls among gateways and nodes (package `holdfast.internal`). Not public.
#[allow(missing_docs, unreachable_pub, clippy::all, rustdoc::all)]
pub mod internal {
    tonic::include_proto!("holdfast.internal");
}

/// The public API (package `holdfast.v1`).
#[allow(missing_docs, unreachable_pub, clippy::all, rustdoc::all)]
pub mod v1 {
    tonic::include_proto!("holdfast.v1");
}

/// The compatible frontend for dlocks clients (package `com.evrblk.monstera_example.gatewaypb`).
#[allow(missing_docs, unreachable_pub, clippy::all, rustdoc::all)]
pub mod dlocks {
    tonic::include_proto!("com.evrblk.monstera_example.gatewaypb");
}

/// Encoded descriptors of the public API, for server reflection.
pub const V1_FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/v1.bin"));

/// Encoded descriptors of the dlocks frontend, for server reflection.
pub const DLOCKS_FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dlocks.bin"));
