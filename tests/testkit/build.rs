//! Generates nothing: a crate with a build script knows its build folder, where the programs are.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
