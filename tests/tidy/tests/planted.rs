//! Faults can be planted for tests; nothing that is built for use may be able to.

use std::path::PathBuf;

use holdfast_tidy::packages::Workspace;
use holdfast_tidy::{assert_none, root};

/// The crate whose feature arms a build.
const PLANT: &str = "holdfast-plant";
/// The one package with a feature that switches it on.
const SIMULATION: &str = "holdfast-sim-tests";

#[test]
fn no_build_is_armed_that_does_not_ask_for_it() {
    let workspace = Workspace::read(&root()).unwrap();
    let mut findings = Vec::new();
    for package in workspace.members() {
        let name = package.name.as_str();
        for dependency in package.dependencies.iter().filter(|dependency| dependency.name == PLANT) {
            if !dependency.features.is_empty() {
                findings.push(format!("{name}: switches on {:?} of {PLANT}", dependency.features));
            }
        }
        for (feature, switches_on) in &package.features {
            let arms = switches_on.iter().any(|what| what.contains(PLANT));
            let is_meant = name == SIMULATION && feature == "plant";
            if arms && !is_meant {
                findings.push(format!("{name}: its feature {feature} arms the build"));
            }
            if feature == "default" && (name == PLANT || name == SIMULATION) {
                findings.push(format!("{name}: must have no default features"));
            }
        }
    }
    assert_none(&findings);
}

#[test]
fn the_tools_build_no_armed_program() {
    let mut findings = Vec::new();
    for path in [PathBuf::from("Makefile"), PathBuf::from("tools")] {
        for (file, text) in texts(&root().join(path)) {
            let arms = |line: &&str| {
                line.contains("--all-features") || (line.contains("--features") && line.contains("plant"))
            };
            let is_meant = |line: &&str| line.contains(SIMULATION) && !line.contains("--bin");
            let lines = text.lines().filter(arms).filter(|line| !is_meant(line));
            findings.extend(lines.map(|line| format!("{}: {line}", file.display())));
        }
    }
    assert_none(&findings);
}

/// The file, or all files of the folder, that are text.
fn texts(path: &PathBuf) -> Vec<(PathBuf, String)> {
    let paths = match std::fs::read_dir(path) {
        Ok(entries) => entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect(),
        Err(_) => vec![path.clone()],
    };
    paths.into_iter().filter_map(|path| std::fs::read_to_string(&path).ok().map(|text| (path, text))).collect()
}
