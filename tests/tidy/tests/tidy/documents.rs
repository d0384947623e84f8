//! Documents name files, functions and types of the tree: a rename brings its author back to the sentence.

use std::path::Path;

use holdfast_tidy::tree::{self, SourceFile};
use holdfast_tidy::{assert_none, root};

use crate::vocabulary::DefinedNames;

/// The documents that describe the code.
const DOCUMENTS: [&str; 3] = ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/testing.md"];

/// Lines of ARCHITECTURE.md: as much as a newcomer reads in one sitting.
const MAX_ARCHITECTURE_LINES: usize = 350;

/// A Rust file that a document names, and what it is said to define: `` `file.rs`: `function`, `Type` ``.
#[derive(Debug, PartialEq, Eq)]
struct Mention<'a> {
    /// The end of its path.
    file: &'a str,
    names: Vec<&'a str>,
}

/// Finds all Rust files that a text names.
fn mentions(text: &str) -> Vec<Mention<'_>> {
    // Code, and what stands between it and the next code, in turns.
    let mut parts = text.split('`').skip(1);
    let (mut found, mut is_open, mut separator) = (Vec::<Mention<'_>>::new(), false, "");
    while let Some(code) = parts.next() {
        if Path::new(code).extension().is_some_and(|extension| extension == "rs") {
            found.push(Mention { file: code, names: Vec::new() });
            is_open = true;
        } else if let Some(last) = found.last_mut() {
            is_open &= separator == if last.names.is_empty() { ":" } else { "," };
            if is_open {
                last.names.push(code);
            }
        }
        separator = parts.next().unwrap_or_default().trim();
    }
    found
}

/// Returns what a mention names and the tree does not have.
fn missing(sources: &[SourceFile], mention: &Mention<'_>) -> Vec<String> {
    let Mention { file, names } = mention;
    let files: Vec<&SourceFile> = sources.iter().filter(|source| source.path.ends_with(file)).collect();
    if files.is_empty() {
        return vec![format!("there is no file `{file}`")];
    }
    if names.is_empty() {
        return Vec::new();
    }
    let defined: Vec<DefinedNames> = files.into_iter().map(DefinedNames::of).collect();
    let gone = names.iter().filter(|name| !defined.iter().any(|file| file.contains(name)));
    gone.map(|name| format!("`{file}` defines no function or type `{name}`")).collect()
}

fn rust_files() -> Vec<SourceFile> {
    tree::files(&root()).unwrap().into_iter().filter(SourceFile::is_rust).collect()
}

#[test]
fn the_architecture_is_read_in_one_sitting() {
    let lines = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap().lines().count();
    assert!(lines <= MAX_ARCHITECTURE_LINES, "it has {lines} lines, and may have {MAX_ARCHITECTURE_LINES}");
}

#[test]
fn the_files_and_functions_that_documents_name_exist() {
    let sources = rust_files();
    let mut findings = Vec::new();
    for document in DOCUMENTS {
        let text = std::fs::read_to_string(root().join(document)).unwrap();
        let mentions = mentions(&text);
        assert!(!mentions.is_empty(), "{document} names no file");
        for mention in mentions {
            findings.extend(missing(&sources, &mention).into_iter().map(|what| format!("{document}: {what}")));
        }
    }
    assert_none(&findings);
}

#[test]
fn a_name_belongs_to_the_file_before_it_and_a_name_that_is_gone_is_noticed() {
    let text =
        "`X` in `a/b.rs`:\n  `f`, `T`; `g`, `h` (`c.rs`), `i` | `d.rs`: `j`, then `k`\n```text\ncode\n```\n`e.rs`: l";
    let mention = |file, names: &[&'static str]| Mention { file, names: names.to_vec() };
    let expected =
        [mention("a/b.rs", &["f", "T"]), mention("c.rs", &[]), mention("d.rs", &["j"]), mention("e.rs", &[])];
    assert_eq!(mentions(text), expected);

    let sources = rust_files();
    let known = mention("tests/tidy/src/tree.rs", &["files", "SourceFile"]);
    assert_eq!(missing(&sources, &known), Vec::<String>::new());
    assert_eq!(missing(&sources, &mention("tidy/src/tree.rs", &["files", "trees"])).len(), 1);
    assert_eq!(missing(&sources, &mention("tidy/src/gone.rs", &[])).len(), 1);
}
