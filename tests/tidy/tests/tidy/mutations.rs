//! Tests can enable mutations; nothing that is built for use may be able to.

use std::path::{Path, PathBuf};

use holdfast_tidy::packages::Workspace;
use holdfast_tidy::{assert_none, root};

/// The crate whose feature puts mutations into a build.
const MUTATIONS_PACKAGE: &str = "holdfast-mutations";
/// The one package with a feature that switches it on.
const SIMULATION_PACKAGE: &str = "holdfast-sim-tests";
/// The one build of programs with it; they need a feature, and are copied aside.
const MUTATED_BUILD: &str = "--workspace $(SIM_PROGRAMS) --features holdfast-sim-tests/mutations";
/// The feature with which a build knows a command that no release has, and the packages that hand it on.
const EXTRA_COMMAND_FEATURE: &str = "extra-command";
/// The one place that builds it: the program is copied aside, and built again without.
const EXTRA_COMMAND_BUILD: &str = "--bin holdfast-node --features holdfast-node-program/extra-command";
const EXTRA_COMMAND_PACKAGES: [&str; 4] = ["holdfast-types", "holdfast-core", "holdfast-node", "holdfast-node-program"];

#[test]
fn no_build_has_mutations_that_does_not_ask_for_them() {
    let workspace = Workspace::read(&root()).unwrap();
    let mut findings = Vec::new();
    for package in workspace.members() {
        let name = package.name.as_str();
        for dependency in package.dependencies.iter().filter(|dependency| dependency.name == MUTATIONS_PACKAGE) {
            if !dependency.features.is_empty() {
                findings.push(format!("{name}: switches on {:?} of {MUTATIONS_PACKAGE}", dependency.features));
            }
        }
        for (feature, switches_on) in &package.features {
            let enables = switches_on.iter().any(|what| what.contains(MUTATIONS_PACKAGE));
            let is_meant = name == SIMULATION_PACKAGE && feature == "mutations";
            if enables && !is_meant {
                findings.push(format!("{name}: its feature {feature} puts mutations into the build"));
            }
            if feature == "default" && (name == MUTATIONS_PACKAGE || name == SIMULATION_PACKAGE) {
                findings.push(format!("{name}: must have no default features"));
            }
        }
    }
    assert_none(&findings);
}

#[test]
fn the_extra_command_is_in_no_build_that_does_not_ask_for_it() {
    let workspace = Workspace::read(&root()).unwrap();
    let mut findings = Vec::new();
    for package in workspace.members() {
        let name = package.name.as_str();
        for dependency in
            package.dependencies.iter().filter(|one| one.features.iter().any(|what| what == EXTRA_COMMAND_FEATURE))
        {
            findings.push(format!("{name}: switches on {EXTRA_COMMAND_FEATURE} of {}", dependency.name));
        }
        for (feature, switches_on) in &package.features {
            let asks = feature == EXTRA_COMMAND_FEATURE
                || switches_on.iter().any(|what| what.ends_with(EXTRA_COMMAND_FEATURE));
            if asks && !(feature == EXTRA_COMMAND_FEATURE && EXTRA_COMMAND_PACKAGES.contains(&name)) {
                findings.push(format!("{name}: its feature {feature} brings {EXTRA_COMMAND_FEATURE}"));
            }
        }
    }
    for path in [PathBuf::from("Makefile"), PathBuf::from("tools")] {
        for (file, text) in text_files(&root().join(path)) {
            let is_meant =
                |line: &str| line.ends_with(EXTRA_COMMAND_BUILD) || line.contains("$(CARGO_TARGET_DIR)/extra");
            let lines = text.lines().filter(|line| line.contains(EXTRA_COMMAND_FEATURE) && !is_meant(line));
            findings.extend(lines.map(|line| format!("{}: {line}", file.display())));
        }
    }
    assert_none(&findings);
}

#[test]
fn the_tools_build_no_program_with_mutations() {
    let mut findings = Vec::new();
    for path in [PathBuf::from("Makefile"), PathBuf::from("tools")] {
        for (file, text) in text_files(&root().join(path)) {
            let enables = |line: &&str| {
                line.contains("--all-features") || (line.contains("--features") && line.contains("mutations"))
            };
            let builds = |line: &str| line.contains("cargo build") || line.contains("--bin");
            let is_meant =
                |line: &&str| line.contains(SIMULATION_PACKAGE) && (line.ends_with(MUTATED_BUILD) || !builds(line));
            let lines = text.lines().filter(enables).filter(|line| !is_meant(line));
            findings.extend(lines.map(|line| format!("{}: {line}", file.display())));
        }
    }
    assert_none(&findings);
}

/// Where the bounds of a node's options reach its cores.
const BOUNDS_FILES: [&str; 2] = ["services/node/src/machine.rs", "services/node/src/machine/snapshot.rs"];

/// Bounds that are not those of the rules are for tests: some of them break the core. A node takes them as an
/// option, so that the simulation can lower them, and no program sets it.
#[test]
fn programs_take_their_bounds_from_the_rules() {
    let mut findings = Vec::new();
    let is_for_tests =
        |file: &Path| file.components().any(|part| part.as_os_str() == "tests") || file.ends_with("tests.rs");
    for folder in ["services", "clients", "cmd"] {
        for file in rust_files(&root().join(folder)).into_iter().filter(|file| !is_for_tests(file)) {
            let text = std::fs::read_to_string(&file).unwrap();
            let own = [
                "ShardState::with_bounds(",
                "::restore_with_bounds(",
                "search_falls_back_after: Some",
                "Bounds::tiny(",
            ];
            let sets = |line: &str| {
                own.iter().any(|own| line.contains(own)) && !BOUNDS_FILES.iter().any(|own| file.ends_with(own))
            };
            let lines = text.lines().filter(|line| sets(line) || line.contains("bounds: Some("));
            findings.extend(lines.map(|line| format!("{}: {line}", file.display())));
        }
    }
    assert_none(&findings);
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let files = files.into_iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs"));
    files.chain(folders.iter().flat_map(|folder| rust_files(folder))).collect()
}

/// The file, or all files of the folder, that are text.
fn text_files(path: &PathBuf) -> Vec<(PathBuf, String)> {
    let paths = match std::fs::read_dir(path) {
        Ok(entries) => entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect(),
        Err(_) => vec![path.clone()],
    };
    paths.into_iter().filter_map(|path| std::fs::read_to_string(&path).ok().map(|text| (path, text))).collect()
}
