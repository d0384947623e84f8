//! Rules for Rust files: how long functions are, and which calls belong nowhere or not into tests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{Attribute, Block, ImplItem, Item, ItemMod, Meta, Signature, TraitItem};

/// A place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

/// What one file says.
#[derive(Debug, Default)]
pub struct Scan {
    /// Functions with the number of lines from signature to closing brace.
    pub functions: Vec<(Finding, usize)>,
    /// Calls that belong nowhere but into tests: `unwrap()`, `todo!`, `dbg!`, `unimplemented!`.
    pub banned_calls: Vec<Finding>,
    /// The first arguments of calls that start a supervised long-lived task, by line: its name, in quotes.
    pub supervised_tasks: Vec<Finding>,
    /// Sets of supervised tasks with an owner of their own, made outside of tests.
    pub task_sets: Vec<Finding>,
    /// Pauses of a fixed time in tests.
    pub sleeps_in_tests: Vec<Finding>,
    /// Files of modules that are compiled for tests only.
    pub test_modules: Vec<PathBuf>,
}

/// Scans a file; `is_test` says that all of it is compiled for tests only.
///
/// # Errors
/// When it is not Rust.
pub fn scan(path: &Path, text: &str, is_test: bool) -> syn::Result<Scan> {
    let file = syn::parse_file(text)?;
    let mut scanner = Scanner { path, scan: Scan::default() };
    scanner.items(&file.items, is_test);
    Ok(scanner.scan)
}

/// Returns the names of the tests of a file that run without being asked for: functions with an attribute `test`, of any
/// runtime, and none that says `ignore`.
///
/// # Errors
/// When it is not Rust.
pub fn tests_of(text: &str) -> syn::Result<BTreeSet<String>> {
    let mut tests = BTreeSet::new();
    add_tests(&syn::parse_file(text)?.items, &mut tests);
    Ok(tests)
}

fn add_tests(items: &[Item], tests: &mut BTreeSet<String>) {
    for item in items {
        match item {
            Item::Fn(function) if runs_as_test(&function.attrs) => {
                tests.insert(function.sig.ident.to_string());
            }
            Item::Mod(ItemMod { content: Some((_, items)), .. }) => add_tests(items, tests),
            _ => {}
        }
    }
}

fn runs_as_test(attributes: &[Attribute]) -> bool {
    let has = |name: &str| {
        attributes.iter().any(|attribute| attribute.path().segments.last().is_some_and(|last| last.ident == name))
    };
    has("test") && !has("ignore")
}

/// Whether a file holds nothing but tests: it lies in a folder of tests or benchmarks, or below a module that is
/// compiled for tests only.
pub fn is_test_file(path: &Path, test_modules: &BTreeSet<PathBuf>) -> bool {
    let in_test_folder = path.parent().is_some_and(|parent| {
        parent.components().any(|component| component.as_os_str() == "tests" || component.as_os_str() == "benches")
    });
    in_test_folder || path.with_extension("").ancestors().any(|module| test_modules.contains(module))
}

struct Scanner<'a> {
    path: &'a Path,
    scan: Scan,
}

impl Scanner<'_> {
    fn items(&mut self, items: &[Item], is_test: bool) {
        for item in items {
            self.item(item, is_test);
        }
    }

    fn item(&mut self, item: &Item, is_test: bool) {
        match item {
            Item::Mod(module) => self.module(module, is_test || is_for_tests(&module.attrs)),
            Item::Fn(function) => {
                let is_test = is_test || is_for_tests(&function.attrs);
                self.function(&function.sig, Some(&function.block), is_test);
            }
            Item::Impl(implementation) => {
                let is_test = is_test || is_for_tests(&implementation.attrs);
                for item in &implementation.items {
                    match item {
                        ImplItem::Fn(method) => {
                            let is_test = is_test || is_for_tests(&method.attrs);
                            self.function(&method.sig, Some(&method.block), is_test);
                        }
                        other => self.tokens(other.to_token_stream(), is_test, ""),
                    }
                }
            }
            Item::Trait(declared) => {
                for item in &declared.items {
                    match item {
                        TraitItem::Fn(method) => self.function(&method.sig, method.default.as_ref(), is_test),
                        other => self.tokens(other.to_token_stream(), is_test, ""),
                    }
                }
            }
            other => self.tokens(other.to_token_stream(), is_test, ""),
        }
    }

    fn module(&mut self, module: &ItemMod, is_test: bool) {
        match &module.content {
            Some((_, items)) => self.items(items, is_test),
            None if is_test => self.scan.test_modules.push(module_path(self.path, module)),
            None => {}
        }
    }

    fn function(&mut self, signature: &Signature, block: Option<&Block>, is_test: bool) {
        let Some(block) = block else { return };
        let line = signature.span().start().line;
        let name = signature.ident.to_string();
        let lines = block.span().end().line + 1 - line;
        self.tokens(block.to_token_stream(), is_test, &name);
        self.scan.functions.push((Finding { line, what: name }, lines));
    }

    /// Looks through tokens, which reaches into macros too.
    fn tokens(&mut self, tokens: TokenStream, is_test: bool, function: &str) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (index, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => self.tokens(group.stream(), is_test, function),
                TokenTree::Ident(ident) => {
                    let found = |what: &str| Finding { line: ident.span().start().line, what: what.to_owned() };
                    let name = ident.to_string();
                    let next = tokens.get(index + 1);
                    if !is_test && name == "unwrap" && follows(&tokens[..index], &['.', ':']) {
                        self.scan.banned_calls.push(found("unwrap()"));
                    }
                    if !is_test && ["todo", "dbg", "unimplemented"].contains(&name.as_str()) && is_punct(next, '!') {
                        self.scan.banned_calls.push(found(&format!("{name}!")));
                    }
                    if !is_test {
                        self.supervision(&tokens[..index], found(&name), next);
                    }
                    // A helper that looks again and again for a condition may pause between two looks.
                    let waits_for_condition = function.starts_with("wait_") || function.starts_with("eventually");
                    if is_test && !waits_for_condition && name == "sleep" && follows_clock(&tokens[..index]) {
                        self.scan.sleeps_in_tests.push(found("sleep"));
                    }
                }
                _ => {}
            }
        }
    }

    /// Looks at a name, what stands before it, and what follows: is a task or a set of tasks made here?
    fn supervision(&mut self, before: &[TokenTree], name: Finding, next: Option<&TokenTree>) {
        let Some(TokenTree::Group(arguments)) = next else { return };
        let is_new_set = name.what == "new"
            && matches!(before, [.., TokenTree::Ident(of), _, _] if of == "TaskSet")
            && follows(before, &[':']);
        if is_new_set {
            self.scan.task_sets.push(name);
        } else if SUPERVISED_SPAWNS.contains(&name.what.as_str()) && follows(before, &['.']) {
            let task = arguments.stream().into_iter().next().map(|first| first.to_string());
            self.scan.supervised_tasks.push(Finding { what: task.unwrap_or_default(), ..name });
        }
    }
}

/// The methods that start a supervised long-lived task.
const SUPERVISED_SPAWNS: [&str; 3] = ["spawn_essential", "spawn_restarting", "spawn_until_done"];

/// Whether the last token is one of these signs.
fn follows(before: &[TokenTree], signs: &[char]) -> bool {
    signs.iter().any(|sign| is_punct(before.last(), *sign))
}

/// Whether the last tokens are `thread::` or `time::`.
fn follows_clock(before: &[TokenTree]) -> bool {
    match before {
        [.., TokenTree::Ident(module), _, _] => {
            follows(before, &[':']) && ["thread", "time"].contains(&module.to_string().as_str())
        }
        _ => false,
    }
}

fn is_punct(token: Option<&TokenTree>, sign: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == sign)
}

/// Whether attributes say `#[test]`, `#[some::test]` or `#[cfg(test)]` or `#[cfg(all(test, …))]`.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_test = attribute.path().segments.last().is_some_and(|segment| segment.ident == "test");
        let is_cfg_test = match &attribute.meta {
            Meta::List(list) if list.path.is_ident("cfg") => {
                let condition: String = list.tokens.to_string().split_whitespace().collect();
                condition == "test" || condition.starts_with("all(test,")
            }
            _ => false,
        };
        is_test || is_cfg_test
    })
}

/// Where the module lies, without the ending: its file has `.rs` added, its children lie below.
fn module_path(declaring: &Path, module: &ItemMod) -> PathBuf {
    let folder = declaring.parent().unwrap_or(Path::new(""));
    for attribute in &module.attrs {
        if let Meta::NameValue(pair) = &attribute.meta
            && pair.path.is_ident("path")
            && let syn::Expr::Lit(literal) = &pair.value
            && let syn::Lit::Str(path) = &literal.lit
        {
            return folder.join(path.value()).with_extension("");
        }
    }
    let stem = declaring.file_stem().unwrap_or_default();
    let is_root = ["lib", "main", "mod"].iter().any(|root| stem == *root);
    let folder = if is_root { folder.to_owned() } else { folder.join(stem) };
    folder.join(module.ident.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(findings: &[Finding]) -> Vec<usize> {
        findings.iter().map(|finding| finding.line).collect()
    }

    fn scanned(text: &str) -> Scan {
        scan(Path::new("services/x/src/lib.rs"), text, false).unwrap()
    }

    #[test]
    fn a_function_is_measured_from_its_signature_to_its_brace() {
        let scan = scanned("/// Doc.\n#[inline]\nfn a() {\n    b();\n}\nimpl X { fn c() {} }\ntrait Y { fn d(); }\n");
        let measured: Vec<_> = scan.functions.iter().map(|(at, lines)| (at.what.as_str(), at.line, *lines)).collect();
        assert_eq!(measured, [("a", 3, 3), ("c", 6, 1)]);
    }

    #[test]
    fn tests_are_functions_that_run_by_themselves() {
        let text = "fn a() {}\n#[test]\nfn b() {}\n#[test]\n#[ignore = \"long\"]\nfn c() {}\n\
                    mod tests { #[tokio::test(start_paused = true)] async fn d() {} fn e() {} }";
        assert_eq!(tests_of(text).unwrap(), BTreeSet::from(["b".to_owned(), "d".to_owned()]));
    }

    #[test]
    fn careless_calls_are_found_also_in_macros_and_paths() {
        let text = "fn a() { x.unwrap(); }\nfn b() { print!(\"{}\", x.unwrap()) }\nfn c() { y.map(Option::unwrap); }\n\
                    fn d() { todo!() }\nfn e() { x.unwrap_or(1); let unwrap = 1; }\nstatic F: u8 = dbg!(1);";
        assert_eq!(lines(&scanned(text).banned_calls), [1, 2, 3, 4, 6]);
    }

    #[test]
    fn tests_may_be_careless_and_may_not_pause() {
        let text = "#[cfg(test)]\nmod tests {\n  #[test]\n  fn a() { x.unwrap(); thread::sleep(d); }\n  use tokio::time::sleep;\n\
                    fn wait_for() { std::thread::sleep(d) }\n}\nfn b() { tokio::time::sleep(d); }\n\
                    #[tokio::test]\nasync fn c() { time::sleep(d).await; x.unwrap() }\n";
        let scan = scanned(text);
        assert_eq!(lines(&scan.banned_calls), [] as [usize; 0]);
        assert_eq!(lines(&scan.sleeps_in_tests), [4, 5, 10]);
    }

    #[test]
    fn supervised_tasks_and_their_sets_are_found_outside_of_tests() {
        let text = "fn a(t: TaskSet) { t.spawn_essential(\"one\", run());\n t.inner().spawn_restarting(name, f) }\n\
                    fn spawn_until_done() { let t = TaskSet::new(owner); TaskSet::of_process(); Vec::new() }\n\
                    #[test]\nfn b() { TaskSet::new(o).spawn_until_done(\"two\", f) }";
        let scan = scanned(text);
        let tasks: Vec<_> = scan.supervised_tasks.iter().map(|task| (task.line, task.what.as_str())).collect();
        assert_eq!((tasks, lines(&scan.task_sets)), (vec![(1, "\"one\""), (2, "name")], vec![3]));
    }

    #[test]
    fn files_of_test_modules_are_test_files_with_all_below() {
        let text =
            "#[cfg(test)]\nmod a;\n#[cfg(test)]\n#[path = \"b_tests.rs\"]\nmod b;\nmod c;\n#[cfg(not(test))]\nmod d;";
        let modules: BTreeSet<_> = scanned(text).test_modules.into_iter().collect();
        let is_test = |path: &str| is_test_file(Path::new(path), &modules);
        assert!(is_test("services/x/src/a.rs") && is_test("services/x/src/a/deep.rs"));
        assert!(is_test("services/x/src/b_tests.rs") && is_test("services/x/tests/any.rs"));
        assert!(!is_test("services/x/src/c.rs") && !is_test("services/x/src/d.rs"));
    }

    #[test]
    fn a_module_of_a_named_file_lies_in_the_folder_of_that_name() {
        let scan = scan(Path::new("src/c.rs"), "#[cfg(test)] mod tests;", false).unwrap();
        assert_eq!(scan.test_modules, [Path::new("src/c/tests")]);
    }
}
