//! Generates the messages, clients and servers of every protocol with a compiler written in Rust, so that a build
//! needs no `protoc`.

use std::{env, error::Error, fs, path::Path};

/// The generated code and the descriptor set are written for each of these, by name of the set.
const PACKAGES: [(&str, &[&str]); 3] = [
    (
        "internal",
        &[
            "holdfast/internal/node.proto",
            "holdfast/internal/operations.proto",
            "holdfast/internal/raft.proto",
            "holdfast/internal/rpc.proto",
        ],
    ),
    (
        "v1",
        &[
            "holdfast/v1/cluster.proto",
            "holdfast/v1/accounts.proto",
            "holdfast/v1/namespaces.proto",
            "holdfast/v1/locks.proto",
            "holdfast/v1/latches.proto",
            "holdfast/v1/semaphores.proto",
            "holdfast/v1/pools.proto",
            "holdfast/v1/barriers.proto",
            "holdfast/v1/sessions.proto",
        ],
    ),
    ("dlocks", &["dlocks/gateway.proto"]),
];

fn main() -> Result<(), Box<dyn Error>> {
    // Relative, as cargo runs this in the folder of the package: cargo keeps the name of what it has to watch, and checkouts
    // share a build cache.
    let root = Path::new("../../proto");
    let out = env::var("OUT_DIR")?;
    println!("cargo:rerun-if-changed={}", root.display());
    for (name, files) in PACKAGES {
        let descriptors = protox::compile(files, [root])?;
        let mut encoded = Vec::new();
        prost::Message::encode(&descriptors, &mut encoded)?;
        fs::write(Path::new(&out).join(format!("{name}.bin")), encoded)?;
        // Log entries and answers pass through unread, so they are kept as shared bytes and not copied.
        tonic_prost_build::configure()
            .bytes(".holdfast.internal")
            .codec_path("crate::codec::SmallBufferCodec")
            // The convenience `connect` of a client would clash with a service's own call of that name: make a channel
            // and give it to `new`.
            .build_transport(name == "dlocks")
            .compile_fds(descriptors)?;
    }
    Ok(())
}
