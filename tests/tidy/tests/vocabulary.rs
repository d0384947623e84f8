//! Identifiers that were retired do not come back: one word has one meaning, see `docs/glossary.md`.

use holdfast_tidy::tree::{self, SourceFile};
use holdfast_tidy::{assert_none, root};
use syn::visit::Visit;
use syn::{Item, ItemFn, TraitItemFn};

/// Names of types, and what to say instead. A name may return in a place where it is the field's term: it is listed with
/// the folder in which it is retired.
const RETIRED: &[(&str, &str, &str)] = &[
    ("services/core/src", "Asked", "Evaluation"),
    ("services/core/src", "Standing", "ClaimKind"),
    ("services/core/src", "Verdict", "Decision"),
    ("services/core/src", "look_again", "reevaluate"),
    ("services/core/src", "Place", "QueuePosition"),
    ("services/core/src", "Line", "ClaimQueue"),
    ("services/core/src", "Waiting", "WaitingRequest"),
    ("services/core/src", "Watch", "BlockedOn"),
    ("services/core/src", "Watchers", "BlockedIndex"),
    ("services/core/src", "Crowd", "OwnerMultiset"),
    ("services/core/src", "Spot", "PathLookup"),
    ("services/core/src", "Side", "NodeExtra"),
    ("services/core/src", "Piece", "Page"),
    ("services/core/src", "Work", "NamespaceTxn"),
    ("services/core/src", "Notes", "EffectBuffer"),
    ("services/core/src", "Settled", "ResolvedWait"),
    ("services/core/src", "Rare", "HoldExtras"),
    ("services/core/src", "Terms", "HoldTerms"),
    ("services/core/src", "Written", "EventRecord"),
    ("services/core/src", "Awaits", "OwnerWaits"),
    ("services/core/src", "Busy", "JobQueue"),
    ("services/core/src", "Room", "PageBudget"),
    ("services/core/src", "Remembered", "IdempotencyCache"),
    ("services/core/src", "HeadFirst", "HeaderFirst"),
    ("services/core/src", "closes_cycle", "detect_deadlock"),
];

/// All types that a file defines.
#[derive(Default)]
struct Names(Vec<String>);

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast Item) {
        let name = match item {
            Item::Struct(item) => Some(&item.ident),
            Item::Enum(item) => Some(&item.ident),
            Item::Type(item) => Some(&item.ident),
            Item::Trait(item) => Some(&item.ident),
            _ => None,
        };
        self.0.extend(name.map(ToString::to_string));
        syn::visit::visit_item(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.0.push(item.sig.ident.to_string());
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.0.push(item.sig.ident.to_string());
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        self.0.push(item.sig.ident.to_string());
        syn::visit::visit_trait_item_fn(self, item);
    }
}

#[test]
fn retired_names_stay_retired() {
    let mut findings = Vec::new();
    for file in tree::files(&root()).unwrap().into_iter().filter(SourceFile::is_rust) {
        let path = file.path.display().to_string();
        let mut names = Names::default();
        let parsed = syn::parse_file(&file.text).unwrap_or_else(|error| panic!("{path}: {error}"));
        names.visit_file(&parsed);
        for (within, name, instead) in RETIRED {
            if path.starts_with(within) && names.0.iter().any(|defined| defined == name) {
                findings.push(format!("{path}: {name} is retired; say {instead}"));
            }
        }
    }
    assert_none(&findings);
}
