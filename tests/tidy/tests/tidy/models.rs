//! The models in docs/models say which functions their actions stand for: a rename brings its author back to the model.

use std::collections::BTreeSet;
use std::path::Path;

use holdfast_tidy::{assert_none, root, rust};

const README: &str = "docs/models/README.md";

/// A line of a table that says what actions stand for.
struct Row {
    model: String,
    /// What stands in the first column as code.
    actions: Vec<String>,
    /// What stands in the second column as code.
    functions: Vec<String>,
}

/// The rows below the headings `### NAME`, each of which is followed by the table of the module of that name.
fn rows(text: &str) -> Vec<Row> {
    let (mut rows, mut model) = (Vec::new(), None);
    for line in text.lines() {
        if line.starts_with('#') {
            model = line.strip_prefix("### ").map(str::to_owned);
        }
        let mut cells = line.strip_prefix("| `").into_iter().flat_map(|_| line.trim_matches('|').split('|'));
        if let (Some(model), Some(actions), Some(functions)) = (&model, cells.next(), cells.next()) {
            rows.push(Row { model: model.clone(), actions: code_spans(actions), functions: code_spans(functions) });
        }
    }
    rows
}

/// What stands between backticks.
fn code_spans(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The actions that a module's next step is made of: what is called there with arguments, or stands alone.
fn actions(module: &str) -> BTreeSet<String> {
    let next = module.split("\nNext ==").nth(1).and_then(|rest| rest.split("\nSpec ==").next()).unwrap_or_default();
    let names = next.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|name| !name.is_empty());
    names.filter(|name| defines(module, name)).map(str::to_owned).collect()
}

/// Whether a module has a definition of that name.
fn defines(module: &str, name: &str) -> bool {
    module.lines().any(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with("==") || rest.starts_with('('))
    })
}

/// Whether the file has the function; `file: function`, as the tables name it.
fn has_function(root: &Path, place: &str) -> bool {
    let Some((file, function)) = place.split_once(": ") else { return false };
    let Ok(text) = std::fs::read_to_string(root.join(file)) else { return false };
    let scan = rust::scan(Path::new(file), &text, false).unwrap_or_else(|error| panic!("{file}: {error}"));
    scan.functions.iter().any(|(at, _)| at.what == function)
}

#[test]
fn every_action_of_a_model_stands_for_a_function_that_there_is() {
    let root = root();
    let text = std::fs::read_to_string(root.join(README)).unwrap();
    let rows = rows(&text);
    let models: BTreeSet<&str> = rows.iter().map(|row| row.model.as_str()).collect();
    assert!(models.contains("LeaderLease") && models.contains("WaitRace"), "{README} has no table of {models:?}");
    let mut findings = Vec::new();
    for row in &rows {
        let gone = row.functions.iter().filter(|place| !has_function(&root, place));
        findings.extend(gone.map(|place| {
            format!("{README}: there is no `{place}`; see what became of it, change {} if its rule did", row.model)
        }));
    }
    for model in models {
        let module = std::fs::read_to_string(root.join(format!("docs/models/{model}.tla"))).unwrap();
        let named: Vec<&String> = rows.iter().filter(|row| row.model == model).flat_map(|row| &row.actions).collect();
        let unknown = named.iter().filter(|name| !defines(&module, name));
        findings.extend(unknown.map(|name| format!("{README}: {model}.tla does not define `{name}`")));
        let unnamed = actions(&module).into_iter().filter(|action| !named.contains(&action));
        findings.extend(unnamed.map(|action| format!("{README}: say what `{action}` of {model}.tla stands for")));
    }
    assert_none(&findings);
}

#[test]
fn what_is_assumed_of_openraft_was_read_in_the_version_that_is_used() {
    let root = root();
    let lock = std::fs::read_to_string(root.join("Cargo.lock")).unwrap();
    let version = lock.split("name = \"openraft\"\nversion = \"").nth(1).and_then(|rest| rest.split('"').next());
    let version = version.expect("openraft is used");
    let text = std::fs::read_to_string(root.join(README)).unwrap();
    let is_read = text.contains(&format!("Read in version `{version}`"));
    assert!(is_read, "{README}: read again in openraft {version} what is assumed of it, and run `make models`");
}

#[test]
fn a_function_that_is_gone_and_an_action_without_a_function_are_noticed() {
    let row = &rows(
        "### M\n| action | functions |\n|---|---|\n| `A`, `B` | `a.rs: f`, a gateway |\n## Other\n| `C` | |\n",
    )[..];
    let [row] = row else { panic!("one row is of a model") };
    assert_eq!((row.model.as_str(), row.actions.len(), &row.functions[..]), ("M", 2, &["a.rs: f".to_owned()][..]));
    let module = "A(n) ==\n  TRUE\nB == TRUE\nC == TRUE\nNext ==\n  \\/ B\n  \\/ \\E n \\in Nodes : A(n)\nSpec == C\n";
    assert_eq!(actions(module), ["A".to_owned(), "B".to_owned()].into());
    assert!(defines(module, "A") && !defines(module, "Nodes"));
    let known = "tests/tidy/src/lib.rs: assert_none";
    assert!(has_function(&root(), known) && !has_function(&root(), "tests/tidy/src/lib.rs: assert_nothing"));
    assert!(!has_function(&root(), "tests/tidy/src/gone.rs: root") && !has_function(&root(), "root"));
}
