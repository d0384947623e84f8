//! Generates the client of etcd from the part of its API that is called.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["etcd.proto", "lock.proto"], ["proto"])?;
    tonic_prost_build::configure().build_server(false).build_transport(false).compile_fds(descriptors)?;
    Ok(())
}
