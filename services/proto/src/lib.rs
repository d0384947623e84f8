//! Every protocol that Holdfast speaks over gRPC, as generated code.
//!
//! Purpose: messages, clients and servers of the internal calls, of the public API and of the compatible frontends.
//!
//! Invariant: nothing here is written by hand but the module list and the buffers of streams; the `.proto` files are the
//! contract, and field numbers that were released are never used again.
//!
//! Deliberately unknown here: what the messages mean. Conversions live beside the frontends that need them.

pub mod codec;

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

#[cfg(test)]
mod tests {
    use prost::Message;
    use prost_types::{DescriptorProto, FileDescriptorSet};

    use super::*;

    fn message<'a>(messages: &'a [DescriptorProto], name: &str) -> &'a DescriptorProto {
        let found = messages.iter().find(|message| message.name() == name);
        found.unwrap_or_else(|| panic!("no message {name}"))
    }

    /// The messages of the public API by their names.
    fn numbers(outer: &str, inner: &str) -> Vec<(String, i32)> {
        let all = FileDescriptorSet::decode(V1_FILE_DESCRIPTOR_SET).expect("it was encoded by the build");
        let messages: Vec<DescriptorProto> = all.file.into_iter().flat_map(|file| file.message_type).collect();
        let outer = message(&messages, outer);
        let fields = if inner.is_empty() { &outer.field } else { &message(&outer.nested_type, inner).field };
        fields.iter().map(|field| (field.name().to_owned(), field.number())).collect()
    }

    #[test]
    fn what_a_connection_says_has_the_numbers_that_are_promised() {
        type Promised<'a> = (&'a str, &'a str, &'a [(&'a str, i32)]);
        let promised: [Promised<'_>; 7] = [
            (
                "ClientMessage",
                "",
                &[("acquire_permits", 11), ("take", 12), ("count_down", 13), ("arrive", 14), ("leave", 15)],
            ),
            ("ClientMessage", "LockInfo", &[("things", 3), ("part", 5), ("parts", 6)]),
            ("ClientMessage", "Thing", &[("weight", 5), ("fencing_token", 6), ("members", 7)]),
            ("ClientMessage", "Pending", &[("acquire_permits", 4), ("take", 5), ("arrive", 6)]),
            ("ServerMessage", "", &[("counted", 9), ("tripped", 10), ("release_requested", 11)]),
            ("ServerMessage", "Opened", &[("durability", 5), ("table_epoch", 6), ("leader", 7)]),
            ("ServerMessage", "State", &[("members", 7)]),
        ];
        for (outer, inner, fields) in promised {
            let numbers = numbers(outer, inner);
            for (name, number) in fields {
                assert!(numbers.contains(&((*name).to_owned(), *number)), "{outer} {inner} {name}: {numbers:?}");
            }
        }
    }
}
