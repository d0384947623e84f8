//! `INVARIANTS.md` lists every place in the source that would panic if something were not as it should be.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// How a place that can panic begins; all of these have a message, or must get one.
const CHECKS: [&str; 8] =
    [".expect(", ".unwrap()", "assert!(", "assert_eq!(", "assert_ne!(", "panic!(", "unreachable!(", "todo!("];
/// Check a whole state, for tests only.
const VERIFY_FILES: [&str; 7] = [
    "primitives/barriers/verify.rs",
    "primitives/latches/verify.rs",
    "locks/conditions/verify.rs",
    "locks/soft_table/verify.rs",
    "locks/table_log/verify.rs",
    "locks/verify.rs",
    "primitives/permits/verify.rs",
];

fn root() -> PathBuf {
    // As it is now: another clone may have compiled this program.
    let folder =
        std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo and tools/run-tests name the folder of the crate");
    PathBuf::from(folder)
}

/// The text of each file of the source without its unit tests, by its path, and that of each file of the primitives.
fn sources() -> BTreeMap<String, String> {
    let mut sources = BTreeMap::new();
    add_sources(&root().join("src"), "", &mut sources);
    add_sources(&root().join("../primitives/src"), "primitives/", &mut sources);
    sources
}

fn add_sources(folder: &Path, prefix: &str, sources: &mut BTreeMap<String, String>) {
    let mut open = vec![folder.to_owned()];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let text = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
        let name = format!("{prefix}{}", path.strip_prefix(folder).unwrap().to_str().unwrap());
        if !VERIFY_FILES.contains(&name.as_str()) {
            sources.insert(name, text.to_owned());
        }
    }
}

/// The code without comments; texts are kept.
fn code(text: &str) -> String {
    let without = |line: &str| line.split_once("//").map_or(line, |(code, _)| code).to_owned();
    text.lines().map(without).collect::<Vec<_>>().join("\n")
}

/// The last text in the parentheses that are open where this begins; empty if there is none.
fn message(rest: &str) -> String {
    let (mut depth, mut letters, mut message) = (1, rest.chars(), String::new());
    while let Some(letter) = letters.next() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            '"' => message = letters.by_ref().take_while(|letter| *letter != '"').collect(),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    message
}

/// The file and the message of each check.
fn checks() -> BTreeSet<(String, String)> {
    let mut checks = BTreeSet::new();
    for (file, text) in sources() {
        let code = code(&text);
        for begin in CHECKS {
            checks.extend(code.split(begin).skip(1).map(|rest| (file.clone(), message(rest))));
        }
    }
    checks
}

/// The number of index expressions of a line: brackets behind something that has items, and not of all of them.
fn indexes(line: &str) -> usize {
    let outside: String = line.split('"').step_by(2).collect();
    // A bracket may end the line.
    let letters: Vec<char> = outside.chars().chain([' '; 3]).collect();
    let is_index = |window: &[char]| {
        let [before, '[', first, second, third] = window else { return false };
        let has_items = before.is_alphanumeric() || matches!(before, '_' | ')' | ']' | '?');
        has_items && !matches!((first, second, third), ('.', '.', ']'))
    };
    letters.windows(5).filter(|window| is_index(window)).count()
}

/// The number of index expressions of each file that has any.
fn index_counts() -> BTreeSet<(String, String)> {
    let counts = sources().into_iter().map(|(file, text)| (file, code(&text).lines().map(indexes).sum::<usize>()));
    counts.filter(|(_, count)| *count > 0).map(|(file, count)| (file, count.to_string())).collect()
}

/// The first two cells of each row of a section of the page.
fn listed(section: &str) -> BTreeSet<(String, String)> {
    let page = fs::read_to_string(root().join(Path::new("INVARIANTS.md"))).unwrap();
    let (_, rest) = page.split_once(&format!("\n## {section}\n")).unwrap();
    let section = rest.split("\n## ").next().unwrap();
    let mut rows = BTreeSet::new();
    for line in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [file, what, why, tests] = cells[..] else { panic!("{line}") };
        assert!(!why.is_empty() && !tests.is_empty(), "{line}");
        assert!(rows.insert((file.trim_matches('`').to_owned(), what.to_owned())), "twice: {line}");
    }
    rows
}

#[test]
fn every_check_is_listed_with_why_it_holds() {
    assert_eq!(message(r#"found(at), "it is (there)").0 else "no""#), "it is (there)");
    let (found, listed) = (checks(), listed("Checks"));
    assert!(found.len() > 30, "{found:?}");
    assert_eq!(found.difference(&listed).collect::<Vec<_>>(), Vec::<&(String, String)>::new(), "not in the list");
    assert_eq!(listed.difference(&found).collect::<Vec<_>>(), Vec::<&(String, String)>::new(), "not in the source");
}

#[test]
fn every_index_is_listed_with_why_it_is_in_range() {
    let lines = ["let a = b[0] + c[i].d[..2];", "x[..]; let y: [u8; 4] = \"a[0]\"", "#[test]", "&list[&key]; f()[1]"];
    assert_eq!(lines.map(indexes), [3, 0, 0, 2]);
    assert_eq!(index_counts(), listed("Indexes"));
}
