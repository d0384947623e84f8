//! The published Locktopus client for Node.js, unchanged, where Node.js is.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::locktopus::locktopus_server;

/// The packages, as npm names them.
const PACKAGES: [&str; 2] = ["@locktopus/client@1.1.4", "ws@8.18.0"];
/// What the client is made to do. It ends with status 0 when everything came out as expected.
const SCRIPT: &str = include_str!("locktopus_client.cjs");

fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    Command::new(program).args(arguments).output().ok()
}

/// Where the packages are, installed once into the folder of builds; none when that is not possible.
fn install_packages() -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("locktopus-client");
    let modules = folder.join("node_modules");
    if !modules.join("@locktopus/client/dist/index.js").is_file() || !modules.join("ws/index.js").is_file() {
        let mut arguments = vec!["install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix"];
        arguments.push(folder.to_str()?);
        arguments.extend(PACKAGES);
        std::fs::create_dir_all(&folder).ok()?;
        let installed = run("npm", &arguments).filter(|output| output.status.success());
        installed?;
    }
    Some(modules)
}

#[test]
fn the_published_client_runs_unchanged() {
    if run("node", &["--version"]).is_none_or(|output| !output.status.success()) {
        eprintln!("skipped: there is no Node.js here");
        return;
    }
    let Some(modules) = install_packages() else {
        eprintln!("skipped: npm is missing or cannot reach its registry");
        return;
    };
    let (_, address) = locktopus_server();
    let mut command = Command::new("node");
    command.args(["-e", SCRIPT, "--", &address.port().to_string()]).env("NODE_PATH", modules);
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(status.success() && said.contains("all came out as expected"), "{said}");
}
