//! What is in `deploy/`: whether it can be read, whether it asks for figures that exist, and whether its files agree.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use holdfast_tidy::{assert_none, root, tree};
use serde_json::Value;

/// Figures that Prometheus makes itself, or that every process has.
const BUILTIN_METRICS: [&str; 5] =
    ["up", "process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds"];
/// What the build of the image is told.
const BUILD_VARIABLES: [&str; 1] = ["HOLDFAST_CACHE"];
/// What a histogram is asked for.
const HISTOGRAM_SUFFIXES: [&str; 3] = ["_bucket", "_sum", "_count"];

fn rules() -> Vec<Value> {
    let rules: Value = yaml("deploy/prometheus/holdfast.rules.yml").remove(0);
    let groups = rules["groups"].as_array().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

fn dashboards() -> Vec<(PathBuf, Value)> {
    let listed = fs::read_dir(root().join("deploy/grafana")).unwrap().map(|entry| entry.unwrap().path());
    let boards = listed.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    boards.map(|path| (path.clone(), serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap())).collect()
}

/// The names of figures in the code: whatever is written there like one.
fn defined_metrics() -> BTreeSet<String> {
    let files = tree::files(&root()).unwrap();
    let code = files.iter().filter(|file| file.is_rust() && file.path.starts_with("services"));
    let words = code.flat_map(|file| file.text.split('"').map(str::to_owned).collect::<Vec<_>>());
    words.filter(|word| word.starts_with("holdfast_") && word.bytes().all(is_metric_name_byte)).collect()
}

fn is_metric_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':'
}

/// The figures that an expression asks for.
fn queried_metrics(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|letter: char| !is_metric_name_byte(letter as u8));
    let is_figure = |word: &&str| word.starts_with("holdfast_") || word.starts_with("process_") || *word == "up";
    words.filter(is_figure).map(str::to_owned).collect()
}

/// What is asked for and does not exist.
fn query_errors(place: &str, expression: &str, counted: &BTreeSet<String>) -> Vec<String> {
    let exists = |name: &String| {
        let plain = HISTOGRAM_SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix));
        BUILTIN_METRICS.contains(&name.as_str())
            || counted.contains(name)
            || plain.is_some_and(|plain| counted.contains(plain))
    };
    let names = queried_metrics(expression);
    let missing = names.iter().filter(|name| !exists(name));
    let mut findings: Vec<String> = missing.map(|name| format!("{place}: nothing counts {name}")).collect();
    if names.is_empty() {
        findings.push(format!("{place}: asks for no figure: {expression}"));
    }
    let balance = expression.matches('(').count() == expression.matches(')').count();
    if !balance {
        findings.push(format!("{place}: brackets do not match: {expression}"));
    }
    findings
}

#[test]
fn alerts_ask_for_figures_that_exist_and_say_what_to_do() {
    let (counted, rules) = (defined_metrics(), rules());
    assert!(rules.len() > 15 && counted.len() > 30, "{} rules, {counted:?}", rules.len());
    let mut findings = Vec::new();
    let mut names = BTreeSet::new();
    for rule in &rules {
        let name = rule["alert"].as_str().or(rule["record"].as_str()).unwrap();
        findings.extend(query_errors(name, rule["expr"].as_str().unwrap(), &counted));
        if !names.insert(name) {
            findings.push(format!("{name}: comes twice"));
        }
        if rule["alert"].is_string() {
            for member in ["/for", "/labels/severity", "/annotations/summary", "/annotations/description"] {
                if rule.pointer(member).and_then(Value::as_str).is_none_or(str::is_empty) {
                    findings.push(format!("{name}: has no {member}"));
                }
            }
        }
    }
    assert_none(&findings);
}

/// Whoever is woken looks there.
#[test]
fn every_alert_is_in_the_guide_with_what_to_do() {
    let guide = fs::read_to_string(root().join("docs/running.md")).unwrap();
    let rows: Vec<Vec<&str>> = guide.lines().map(|line| line.split('|').map(str::trim).collect()).collect();
    let is_told = |name: &str, is_critical: bool| {
        let first = format!("`{name}`{}", if is_critical { " (critical)" } else { "" });
        rows.iter().any(|row| matches!(row[..], ["", alert, means, act, ""] if alert == first && !means.is_empty() && !act.is_empty()))
    };
    let rules = rules();
    let alerts =
        rules.iter().filter_map(|rule| Some((rule["alert"].as_str()?, rule["labels"]["severity"] == "critical")));
    let missing = alerts.filter(|(name, is_critical)| !is_told(name, *is_critical));
    let findings: Vec<String> =
        missing.map(|(name, _)| format!("docs/running.md: nothing to do about {name}")).collect();
    assert_none(&findings);
}

#[test]
fn dashboards_ask_for_figures_that_exist() {
    let (counted, boards) = (defined_metrics(), dashboards());
    let (mut findings, mut asked) = (Vec::new(), 0);
    assert_eq!(boards.len(), 2);
    for (path, board) in &boards {
        assert!(board["uid"].is_string() && board["title"].is_string() && board["schemaVersion"].is_u64());
        let mut ids = BTreeSet::new();
        for panel in board["panels"].as_array().unwrap() {
            let place = format!("{}, {}", path.display(), panel["title"]);
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{place}: its id is another one's");
            let grid = &panel["gridPos"];
            let right = grid["x"].as_u64().unwrap() + grid["w"].as_u64().unwrap();
            assert!(right <= 24, "{place}: does not fit");
            for target in panel["targets"].as_array().into_iter().flatten() {
                findings.extend(query_errors(&place, target["expr"].as_str().unwrap(), &counted));
                asked += 1;
            }
        }
    }
    assert!(asked > 30);
    assert_none(&findings);
}

fn yaml(path: &str) -> Vec<Value> {
    let text = fs::read_to_string(root().join(path)).unwrap();
    serde_yaml_ng::Deserializer::from_str(&text).map(|part| serde::Deserialize::deserialize(part).unwrap()).collect()
}

fn config(path: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(root().join(path)).unwrap()).unwrap()
}

fn addresses(config: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    config["nodes"].as_array().unwrap().iter().map(|node| (text(&node["id"]), text(&node["address"]))).collect()
}

#[test]
fn prometheus_itself_accepts_the_files_and_raises_the_alerts_that_it_should() {
    let named = std::env::var("HOLDFAST_PROMTOOL").ok();
    let program = named.clone().unwrap_or_else(|| "promtool".to_owned());
    let checks = [
        &["check", "rules", "holdfast.rules.yml"][..],
        &["test", "rules", "holdfast.rules.test.yml"],
        &["check", "config", "--syntax-only", "prometheus.yml"],
    ];
    for check in checks {
        let mut command = Command::new(&program);
        let checked = match command.current_dir(root().join("deploy/prometheus")).args(check).output() {
            Ok(checked) => checked,
            Err(error) => {
                assert!(named.is_none(), "{program}: {error}");
                return eprintln!("skipped: promtool cannot be run ({error}); `make deploy` fetches it");
            }
        };
        let said = String::from_utf8_lossy(&checked.stdout).into_owned() + &String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success(), "{check:?}: {said}");
    }
}

#[test]
fn the_configs_of_containers_are_the_shipped_one_at_the_addresses_that_the_containers_have() {
    let mut shipped = config("cluster_config.json");
    let compose = &yaml("deploy/compose/compose.yaml")[0]["services"];
    let nodes = yaml("deploy/kubernetes/nodes.yaml");
    let set = nodes.iter().find(|part| part["kind"] == "StatefulSet").unwrap();
    let (set, service) = (set["metadata"]["name"].as_str().unwrap(), set["spec"]["serviceName"].as_str().unwrap());
    let host_of_pod = |number: usize| format!("{set}-{number}.{service}");
    for (place, host) in [("compose", None), ("kubernetes", Some(host_of_pod))] {
        let mut theirs = config(&format!("deploy/{place}/cluster_config.json"));
        for (number, (id, address)) in addresses(&theirs).into_iter().enumerate() {
            let number = number + 1;
            let expected = host.map_or(format!("node-{number}"), |host| host(number));
            assert_eq!((id.as_str(), address), (&*format!("nd_{number}"), format!("{expected}:7000")), "{place}");
            if place == "compose" {
                assert_eq!(compose[&expected]["hostname"], Value::String(expected.clone()));
                assert_eq!(compose[&expected]["environment"]["HOLDFAST_NODE_ID"], Value::String(id));
            }
        }
        assert_eq!(theirs["nodes"].as_array().unwrap().len(), 3, "{place}");
        theirs["nodes"] = shipped["nodes"].take();
        shipped["nodes"] = theirs["nodes"].clone();
        assert_eq!(theirs, shipped, "deploy/{place} has the shards and replicas of the shipped config");
    }
}

/// Variables that programs are told, wherever they are told them.
#[test]
fn programs_are_told_nothing_that_they_do_not_know() {
    let files = tree::files(&root()).unwrap();
    let code: String = files.iter().filter(|file| file.is_rust()).map(|file| file.text.as_str()).collect();
    let told = files.iter().filter(|file| file.path.starts_with("deploy"));
    let mut findings = Vec::new();
    let mut seen = 0;
    for file in told {
        let words = file.text.split(|letter: char| !(letter.is_ascii_uppercase() || letter == '_'));
        for name in words.filter(|word| word.starts_with("HOLDFAST_") && word.len() > 9) {
            seen += 1;
            if !code.contains(&format!("\"{name}\"")) && !BUILD_VARIABLES.contains(&name) {
                findings.push(format!("{}: no program knows {name}", file.path.display()));
            }
        }
    }
    assert!(seen > 30, "{seen}");
    assert_none(&findings);
}

/// The value of a constant of the code, in seconds.
fn seconds_of(path: &str, name: &str) -> u64 {
    let text = fs::read_to_string(root().join(path)).unwrap();
    let (_, value) = text.split_once(&format!("const {name}: Duration = Duration::from_secs(")).unwrap();
    value.split_once(')').unwrap().0.parse().unwrap()
}

/// Calls in flight are lost if a process is killed while it completes them, and leaders are missed for longer.
#[test]
fn processes_have_the_time_to_stop_that_they_need() {
    let gateway = "services/gateway/src/server.rs";
    let drain = ["LAST_CALL_GRACE", "DRAIN_TIMEOUT", "CLOSE_TIMEOUT"].map(|name| seconds_of(gateway, name));
    let longest = drain.iter().sum::<u64>() + seconds_of("services/node/src/node.rs", "TRANSFER_TIMEOUT");
    let (unit, pod) = ("TimeoutStopSec=", "terminationGracePeriodSeconds: ");
    for (path, name) in [
        ("deploy/systemd/holdfast-gateway.service", unit),
        ("deploy/systemd/holdfast-node.service", unit),
        ("deploy/compose/compose.yaml", "stop_grace_period: "),
        ("deploy/kubernetes/gateways.yaml", pod),
        ("deploy/kubernetes/nodes.yaml", pod),
    ] {
        let text = fs::read_to_string(root().join(path)).unwrap();
        let values = text.lines().filter_map(|line| line.trim().strip_prefix(name));
        let given: Vec<u64> = values.map(|value| value.trim_end_matches('s').parse().unwrap()).collect();
        assert!(given.len() == 1 && given[0] > longest, "{path}: {given:?} s, and stopping takes up to {longest} s");
    }
}

#[test]
fn the_tools_that_read_them_accept_the_files_where_they_are_installed() {
    let checked = Command::new(root().join("tools/deploy-check")).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stdout).into_owned() + &String::from_utf8_lossy(&checked.stderr);
    println!("{said}");
    assert!(checked.status.success(), "{said}");
}
