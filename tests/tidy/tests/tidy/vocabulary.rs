//! Identifiers that were retired do not come back: one word has one meaning, see `docs/glossary.md`.

use holdfast_tidy::tree::{self, SourceFile};
use holdfast_tidy::{assert_none, root};
use syn::visit::Visit;
use syn::{Item, ItemFn, TraitItemFn};

/// Names of types: the folder in which each is retired, the name, and what to say instead. Elsewhere it may be the
/// field's term.
const RETIRED_TYPES: &str = include_str!("../../retired_types.txt");

/// Names of types that have had too many meanings to be used for any.
const RETIRED_EVERYWHERE: [&str; 6] = ["Caller", "Heard", "Place", "Room", "Standing", "Waiting"];

/// Names of functions that say too little.
const RETIRED_FUNCTIONS: [&str; 19] = [
    "ask",
    "asked",
    "give_back",
    "give_up",
    "hear",
    "heard",
    "is_there",
    "keep",
    "keep_up",
    "look",
    "look_again",
    "note",
    "place",
    "room",
    "show",
    "standing",
    "tell",
    "told",
    "under_way",
];

/// Words that no name of a type or a function has. Names of tests are sentences and may have any.
const RETIRED_WORDS: [&str; 14] = [
    "forget", "forgets", "hear", "heard", "hears", "note", "notes", "place", "places", "room", "tell", "tells", "told",
    "unplaced",
];
/// No name of more words is checked: it is that of a test.
const MAX_WORDS: usize = 5;

/// Returns the words of a name in snake case or camel case, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = Vec::<String>::new();
    for part in name.split('_') {
        let mut was_upper = true;
        let mut word = String::new();
        for letter in part.chars() {
            if letter.is_uppercase() && !was_upper {
                words.push(std::mem::take(&mut word));
            }
            was_upper = letter.is_uppercase();
            word.extend(letter.to_lowercase());
        }
        words.push(word);
    }
    words
}

/// All types and functions that a file defines.
#[derive(Default)]
pub(crate) struct DefinedNames {
    types: Vec<String>,
    functions: Vec<String>,
}

impl DefinedNames {
    /// Finds those of a file.
    pub(crate) fn of(file: &SourceFile) -> Self {
        let parsed = syn::parse_file(&file.text).unwrap_or_else(|error| panic!("{}: {error}", file.path.display()));
        let mut names = Self::default();
        names.visit_file(&parsed);
        names
    }

    /// Returns whether one of them has this name.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.types.iter().chain(&self.functions).any(|defined| defined == name)
    }
}

impl<'ast> Visit<'ast> for DefinedNames {
    fn visit_item(&mut self, item: &'ast Item) {
        let name = match item {
            Item::Struct(item) => Some(&item.ident),
            Item::Enum(item) => Some(&item.ident),
            Item::Type(item) => Some(&item.ident),
            Item::Trait(item) => Some(&item.ident),
            _ => None,
        };
        self.types.extend(name.map(ToString::to_string));
        syn::visit::visit_item(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.functions.push(item.sig.ident.to_string());
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.functions.push(item.sig.ident.to_string());
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        self.functions.push(item.sig.ident.to_string());
        syn::visit::visit_trait_item_fn(self, item);
    }
}

/// Folder, retired name, what to say instead.
fn retired_types() -> Vec<(&'static str, &'static str, &'static str)> {
    let fields = |line: &'static str| {
        let (folder, rest) = line.split_once(' ')?;
        let (name, instead) = rest.split_once(' ')?;
        Some((folder, name, instead))
    };
    RETIRED_TYPES.lines().map(|line| fields(line).unwrap_or_else(|| panic!("three fields: {line}"))).collect()
}

#[test]
fn retired_names_stay_retired() {
    let retired = retired_types();
    let mut findings = Vec::new();
    for file in tree::files(&root()).unwrap().into_iter().filter(SourceFile::is_rust) {
        let names = DefinedNames::of(&file);
        // What was part of the core keeps its words.
        let is_core = file.path.starts_with("services/primitives");
        let is_in = |folder: &str| file.path.starts_with(folder) || (is_core && folder == "services/core");
        for name in names.types {
            let here = retired.iter().find(|(folder, retired, _)| *retired == name && is_in(folder));
            if let Some((_, _, instead)) = here {
                findings.push(format!("{}: {name} is retired; say {instead}", file.path.display()));
            } else if RETIRED_EVERYWHERE.contains(&name.as_str()) {
                findings.push(format!("{}: {name} is retired everywhere", file.path.display()));
            }
        }
        for name in names.functions.iter().filter(|name| RETIRED_FUNCTIONS.contains(&name.as_str())) {
            findings.push(format!("{}: {name}() is retired; say what it does", file.path.display()));
        }
    }
    assert_none(&findings);
}

#[test]
fn no_name_is_made_of_a_retired_word() {
    let mut findings = Vec::new();
    let is_product = |file: &SourceFile| {
        let is_source = ["services", "cmd", "clients"].iter().any(|folder| file.path.starts_with(folder));
        is_source && file.path.components().any(|component| component.as_os_str() == "src")
    };
    for file in tree::files(&root()).unwrap().into_iter().filter(SourceFile::is_rust).filter(is_product) {
        let names = DefinedNames::of(&file);
        for name in names.types.iter().chain(&names.functions) {
            let words = words(name);
            let retired = words.iter().find(|word| RETIRED_WORDS.contains(&word.as_str()));
            if let Some(word) = retired.filter(|_| words.len() <= MAX_WORDS) {
                findings.push(format!("{}: {name}: \"{word}\" is retired; use the field's term", file.path.display()));
            }
        }
    }
    assert_none(&findings);
}

#[test]
fn names_are_split_into_their_words() {
    assert_eq!(words("take_place"), ["take", "place"]);
    assert_eq!(words("LockView"), ["lock", "view"]);
    assert_eq!(words("HTTPServer"), ["httpserver"]);
}
