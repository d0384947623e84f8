//! Nothing is made here: with a build script there is a folder of the build, by which the programs are found.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
