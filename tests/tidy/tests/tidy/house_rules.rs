//! How files have to look.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use holdfast_tidy::packages::{Workspace, crate_roots};
use holdfast_tidy::rust::{self, Scan};
use holdfast_tidy::tree::{self, SourceFile};
use holdfast_tidy::{assert_none, root, text};

const MAX_FILE_LINES: usize = 500;
const MAX_FUNCTION_LINES: usize = 70;
/// Maximum share of a crate in the lines of all crates, tests aside, in percent.
const MAX_CRATE_PERCENT: usize = 20;
/// Shorter than any sentence that says what a crate is for.
const MIN_PURPOSE_CHARACTERS: usize = 20;

fn rust_files() -> Vec<SourceFile> {
    tree::files(&root()).unwrap().into_iter().filter(SourceFile::is_rust).collect()
}

fn scan(file: &SourceFile, is_test: bool) -> Scan {
    rust::scan(&file.path, &file.text, is_test).unwrap_or_else(|error| panic!("{}: {error}", file.path.display()))
}

/// The modules that are compiled for tests only.
fn test_modules(files: &[SourceFile]) -> BTreeSet<PathBuf> {
    files.iter().flat_map(|file| scan(file, false).test_modules).collect()
}

/// Every Rust file with what it says. Which files are tests is known only once all declarations of modules were seen.
pub(crate) fn scans() -> Vec<(SourceFile, Scan)> {
    let files = rust_files();
    let test_modules = test_modules(&files);
    files
        .into_iter()
        .map(|file| {
            let scan = scan(&file, rust::is_test_file(&file.path, &test_modules));
            (file, scan)
        })
        .collect()
}

#[test]
fn files_and_functions_fit_into_a_readers_head() {
    let mut findings = Vec::new();
    for (file, scan) in scans() {
        let path = file.path.display();
        let lines = file.text.lines().count();
        if lines > MAX_FILE_LINES {
            findings.push(format!("{path}: {lines} lines; split it, {MAX_FILE_LINES} are allowed"));
        }
        for (at, lines) in scan.functions.into_iter().filter(|(_, lines)| *lines > MAX_FUNCTION_LINES) {
            let (line, name) = (at.line, at.what);
            findings
                .push(format!("{path}:{line}: {name} has {lines} lines; split it, {MAX_FUNCTION_LINES} are allowed"));
        }
    }
    assert_none(&findings);
}

#[test]
fn no_crate_has_more_than_a_fifth_of_the_source() {
    let files = rust_files();
    let test_modules = test_modules(&files);
    let mut lines = BTreeMap::<PathBuf, usize>::new();
    let sources = files.iter().filter(|file| !file.path.starts_with("tests"));
    for file in sources.filter(|file| !rust::is_test_file(&file.path, &test_modules)) {
        let of_crate: PathBuf = file.path.components().take(2).collect();
        *lines.entry(of_crate).or_default() += file.text.lines().count();
    }
    let all: usize = lines.values().sum();
    let is_large = |of_crate: &usize| of_crate * 100 > all * MAX_CRATE_PERCENT;
    let large = lines.into_iter().filter(|(_, of_crate)| is_large(of_crate));
    let findings: Vec<String> =
        large.map(|(path, of_crate)| format!("{}: {of_crate} of {all} lines; split it", path.display())).collect();
    assert_none(&findings);
}

#[test]
fn nothing_but_tests_calls_what_panics_or_prints_by_accident() {
    let mut findings = Vec::new();
    for (file, scan) in scans() {
        for at in scan.banned_calls {
            let place = format!("{}:{}", file.path.display(), at.line);
            findings.push(format!("{place}: {}; return an error, or use `expect` with a proof", at.what));
        }
    }
    assert_none(&findings);
}

#[test]
fn tests_wait_for_conditions_and_never_for_a_time() {
    let mut findings = Vec::new();
    // In the simulation time is simulated too: a pause there is a part of what is tried, and takes none.
    for (file, scan) in scans().into_iter().filter(|(file, _)| !file.path.starts_with("tests/sim")) {
        for at in scan.sleeps_in_tests {
            let place = format!("{}:{}", file.path.display(), at.line);
            findings
                .push(format!("{place}: {}; wait for a condition, in a helper named wait_… or eventually…", at.what));
        }
    }
    assert_none(&findings);
}

#[test]
fn every_crate_says_what_it_is_for_and_keeps_the_lints_of_the_workspace() {
    let root = root();
    let workspace = Workspace::read(&root).unwrap();
    let mut findings = Vec::new();
    for package in workspace.members() {
        for path in crate_roots(package, &root) {
            let text = std::fs::read_to_string(root.join(path)).unwrap();
            let first = text.lines().next().unwrap_or_default();
            if !first.starts_with("//! ") || first.chars().count() < MIN_PURPOSE_CHARACTERS {
                findings.push(format!("{}: open it with `//!` and what the crate is for", path.display()));
            }
        }
        let manifest = std::fs::read_to_string(&package.manifest_path).unwrap();
        if !manifest.contains("[lints]\nworkspace = true") {
            findings.push(format!("{}: has no `[lints] workspace = true`", package.manifest_path));
        }
    }
    assert_none(&findings);
}

/// Files of one line each, which name the parser that they feed.
const FUZZ_TARGETS: &str = "tests/fuzz/guided/targets";

#[test]
fn every_module_says_what_it_is_for() {
    // The tests of a module in a file of their own have its purpose.
    let has_own_purpose = |file: &SourceFile| {
        let stem = file.path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        stem != "tests" && !stem.ends_with("_tests") && !file.path.starts_with(FUZZ_TARGETS)
    };
    let is_undocumented = |file: &SourceFile| !file.text.starts_with("//! ");
    let files = rust_files().into_iter().filter(has_own_purpose).filter(is_undocumented);
    let findings: Vec<String> =
        files.map(|file| format!("{}: open it with `//!` and what the module is for", file.path.display())).collect();
    assert_none(&findings);
}

#[test]
fn nothing_speaks_of_a_developers_machine() {
    let mut findings = Vec::new();
    for file in tree::files(&root()).unwrap() {
        let lines = text::foreign_paths(&file.text).into_iter();
        findings.extend(lines.map(|line| format!("{}:{line}: names a path of one machine", file.path.display())));
    }
    assert_none(&findings);
}
