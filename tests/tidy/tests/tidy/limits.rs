//! Every limit that a caller can meet has a test that reaches it, and one that shows what a neighbour notices.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use holdfast_tidy::{assert_none, root, rust};

/// The list of limits, which is made from the code.
const PAGE: &str = "docs/limits.md";
/// For each limit its tests: a line of the name and both tests, each as `file::function`.
const TESTS: &str = include_str!("../../limit_tests.txt");
const NONE: &str = "-";
/// Parts of the name of a test that shows both: it tells what a neighbour notices.
const NEIGHBOURS: [&str; 4] = ["another", "other", "others", "alone"];
/// Limits that no test reaches. The number only falls.
const MAX_UNREACHED: usize = 0;
/// Limits of which no test shows what a neighbour notices. The number only falls.
const MAX_WITHOUT_NEIGHBOUR: usize = 0;

struct Row {
    reach: &'static str,
    neighbour: &'static str,
}

fn limits() -> Vec<String> {
    let page = fs::read_to_string(root().join(PAGE)).unwrap();
    page.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned())).collect()
}

/// The rows by limit, and what is wrong with the list itself.
fn rows() -> (BTreeMap<&'static str, Row>, Vec<String>) {
    let (mut rows, mut findings) = (BTreeMap::new(), Vec::new());
    for line in TESTS.lines().filter(|line| !line.starts_with('#')) {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            [limit, reach, neighbour] => {
                if rows.insert(limit, Row { reach, neighbour }).is_some() {
                    findings.push(format!("{limit}: is listed twice"));
                }
            }
            _ => findings.push(format!("not a limit and two tests: {line}")),
        }
    }
    (rows, findings)
}

/// What is wrong with a test that the list names.
fn test_error(test: &str) -> Option<String> {
    let Some((file, function)) = test.split_once("::") else { return Some("is not `file::function`".to_owned()) };
    let Ok(text) = fs::read_to_string(root().join(file)) else { return Some(format!("there is no {file}")) };
    match rust::tests_of(&text) {
        Ok(tests) => (!tests.contains(function)).then(|| format!("{file} has no test {function}")),
        Err(error) => Some(format!("{file}: {error}")),
    }
}

/// What is wrong with one test for both.
fn pair_error(row: &Row) -> Option<&'static str> {
    let is_one = row.reach == row.neighbour && row.reach != NONE;
    let name = row.reach.rsplit("::").next().unwrap_or_default();
    let shows_neighbour = name.split('_').any(|word| NEIGHBOURS.contains(&word));
    (is_one && !shows_neighbour).then_some("is named for both, and its name tells of no neighbour")
}

#[test]
fn every_limit_has_a_test_that_reaches_it_and_one_of_its_neighbours() {
    let (rows, mut findings) = rows();
    let limits = limits();
    assert!(limits.len() > 40, "{limits:?}");
    for limit in &limits {
        let Some(row) = rows.get(limit.as_str()) else {
            findings.push(format!("{limit}: tests/tidy/limit_tests.txt names no tests of it"));
            continue;
        };
        let tests = [row.reach, row.neighbour].into_iter().filter(|test| *test != NONE);
        findings.extend(tests.filter_map(|test| Some(format!("{limit}: {test}: {}", test_error(test)?))));
        findings.extend(pair_error(row).map(|error| format!("{limit}: {}: {error}", row.reach)));
    }
    let known: BTreeSet<&str> = limits.iter().map(String::as_str).collect();
    let gone = rows.keys().filter(|limit| !known.contains(*limit));
    findings.extend(gone.map(|limit| format!("{limit}: is no limit any more")));
    assert_none(&findings);
}

#[test]
fn limits_without_tests_only_become_fewer() {
    let (rows, _) = rows();
    let without = |test: fn(&Row) -> &'static str| -> Vec<&str> {
        rows.iter().filter(|(_, row)| test(row) == NONE).map(|(limit, _)| *limit).collect()
    };
    for (limits, max) in
        [(without(|row| row.reach), MAX_UNREACHED), (without(|row| row.neighbour), MAX_WITHOUT_NEIGHBOUR)]
    {
        assert_eq!(limits.len(), max, "write the test, or lower the number in this file: {limits:?}");
    }
}
