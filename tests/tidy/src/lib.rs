//! The rules of this source tree, as tests: which crate may depend on which, and how files have to look.
//!
//! Purpose: read the workspace, and find every place that breaks a rule, so that one run names them all.
//!
//! Invariant: nothing is changed and nothing is compiled here; every finding says the file and what to do.
//!
//! Deliberately unknown here: what the code does. Rules that the compiler or clippy can check are lints instead.

pub mod packages;
pub mod rust;
pub mod text;
pub mod tree;

use std::path::{Path, PathBuf};

/// The root of the workspace that tests run in: cargo runs them in the folder of their package. A path of the time of
/// compiling could be that of another checkout, since checkouts share a build cache.
///
/// # Panics
/// When that is not two folders up from here.
pub fn root() -> PathBuf {
    let root = Path::new("../..").canonicalize().expect("a test runs in the folder of its package");
    assert!(root.join("Cargo.lock").is_file(), "{} is not the root of the workspace", root.display());
    root
}

/// Fails with every finding on a line of its own.
///
/// # Panics
/// When there is a finding.
pub fn assert_none(findings: &[String]) {
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}
