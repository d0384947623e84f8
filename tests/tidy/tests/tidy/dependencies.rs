//! Dependencies point one way: from programs over the services that they run down to the pure core.

use std::collections::BTreeSet;

use holdfast_tidy::packages::Workspace;
use holdfast_tidy::{assert_none, root};

/// Which services each service may use directly. When the design changes, change it here and in ARCHITECTURE.md.
const ALLOWED_DEPENDENCIES: [(&str, &[&str]); 24] = [
    ("types", &[]),
    ("primitives", &["types", "mutations"]),
    ("core", &["primitives", "types", "mutations"]),
    ("cluster", &["types"]),
    ("backup", &[]),
    ("storage", &[]),
    ("telemetry", &["supervise"]),
    ("proto", &[]),
    ("tls", &["supervise", "types"]),
    ("mutations", &[]),
    ("fair_queue", &[]),
    ("clock", &[]),
    ("supervise", &["mutations"]),
    ("auth", &["types"]),
    ("runtime", &["auth", "telemetry", "tls"]),
    ("bootstrap", &["auth"]),
    ("operator", &["auth", "supervise"]),
    ("rpc", &["proto", "auth", "tls", "supervise", "fair_queue"]),
    ("routing", &["rpc", "types", "proto", "cluster", "auth", "telemetry", "supervise", "fair_queue"]),
    ("replication", &["rpc", "storage", "proto", "mutations", "supervise", "fair_queue", "clock"]),
    (
        "node",
        &[
            "core",
            "backup",
            "storage",
            "proto",
            "mutations",
            "cluster",
            "auth",
            "rpc",
            "routing",
            "replication",
            "tls",
            "telemetry",
            "supervise",
            "fair_queue",
            "clock",
        ],
    ),
    ("api", &["types", "proto"]),
    (
        "backend",
        &["api", "types", "proto", "cluster", "auth", "routing", "mutations", "supervise", "fair_queue", "clock"],
    ),
    ("gateway", &["backend", "api", "types", "proto", "routing", "tls", "telemetry", "supervise"]),
];

fn workspace() -> Workspace {
    Workspace::read(&root()).unwrap()
}

#[test]
fn services_use_only_the_services_below_them() {
    let workspace = workspace();
    let services = workspace.packages_in("services");
    let folder_of = |package: &str| services.iter().find(|(_, known)| *known.name == package).map(|(folder, _)| folder);
    let mut findings = Vec::new();
    for (folder, package) in &services {
        let Some((_, allowed)) = ALLOWED_DEPENDENCIES.iter().find(|(known, _)| known == folder) else {
            findings.push(format!("services/{folder}: is new; say in this test which services it may use"));
            continue;
        };
        for declared in workspace.declared_dependencies(package) {
            let Some(used) = folder_of(declared.name) else { continue };
            if !declared.is_for_tests && used != folder && !allowed.contains(&used.as_str()) {
                findings.push(format!("services/{folder}: depends on services/{used}, which is not below it"));
            }
        }
    }
    assert_none(&findings);
}

#[test]
fn the_core_is_pure() {
    let workspace = workspace();
    let services = workspace.packages_in("services");
    // Of mutations nothing is left in what is built for use.
    let siblings = services
        .iter()
        .filter(|(folder, _)| !["mutations", "primitives", "types"].contains(&folder.as_str()))
        .map(|(_, package)| package.name.as_str());
    let impure = ["tokio", "openraft", "rocksdb", "tonic", "hyper", "axum", "rand", "getrandom"];
    let forbidden: BTreeSet<&str> = siblings.chain(impure).collect();
    let reached = workspace.transitive_dependencies(services["core"]);
    assert_none(
        &forbidden.intersection(&reached).map(|name| format!("services/core: reaches {name}")).collect::<Vec<_>>(),
    );
}

#[test]
fn the_gateway_knows_nothing_of_raft_storage_and_the_state_machines() {
    let workspace = workspace();
    let reached = workspace.transitive_dependencies(workspace.packages_in("services")["gateway"]);
    let forbidden =
        ["holdfast-core", "holdfast-node", "holdfast-replication", "holdfast-storage", "openraft", "rocksdb"];
    assert_none(
        &forbidden
            .iter()
            .filter(|name| reached.contains(*name))
            .map(|name| format!("services/gateway: reaches {name}"))
            .collect::<Vec<_>>(),
    );
}

/// What only frontends are made of.
const FRONTEND_LIBRARIES: [&str; 7] =
    ["axum", "hyper", "hyper-util", "tonic-health", "tonic-reflection", "tower-http", "utoipa-axum"];

#[test]
fn the_api_and_the_backend_know_no_frontend() {
    let workspace = workspace();
    let services = workspace.packages_in("services");
    let mut findings = Vec::new();
    for folder in ["api", "backend"] {
        let declared = workspace.declared_dependencies(services[folder]).into_iter();
        let of_frontends =
            declared.filter(|declared| !declared.is_for_tests && FRONTEND_LIBRARIES.contains(&declared.name));
        findings.extend(of_frontends.map(|declared| format!("services/{folder}: depends on {}", declared.name)));
    }
    assert_none(&findings);
}

#[test]
fn only_replication_depends_on_openraft_and_only_storage_on_rocksdb() {
    let workspace = workspace();
    let mut findings = Vec::new();
    for package in workspace.members() {
        for declared in workspace.declared_dependencies(package) {
            let owner = match declared.name {
                name if name == "openraft" || name.starts_with("openraft-") => "holdfast-replication",
                "rocksdb" | "librocksdb-sys" => "holdfast-storage",
                _ => continue,
            };
            if *package.name != owner {
                findings.push(format!("{}: depends on {}, which belongs inside {owner}", package.name, declared.name));
            }
        }
    }
    assert_none(&findings);
}

#[test]
fn a_client_knows_the_protocol_and_the_clock_and_nothing_else_of_the_service() {
    let workspace = workspace();
    let services: BTreeSet<String> =
        workspace.packages_in("services").values().map(|package| package.name.to_string()).collect();
    let mut findings = Vec::new();
    for (folder, package) in workspace.packages_in("clients") {
        let reached = workspace.transitive_dependencies(package);
        // How time passes while a machine is suspended is the same question for a lease and for a session.
        let shared = ["holdfast-proto", "holdfast-clock"];
        let foreign = reached.iter().filter(|name| services.contains(**name) && !shared.contains(*name));
        findings.extend(foreign.map(|name| format!("clients/{folder}: reaches {name}")));
    }
    assert_none(&findings);
}

#[test]
fn nothing_depends_on_a_program() {
    let workspace = workspace();
    let programs: BTreeSet<String> =
        workspace.packages_in("cmd").values().map(|package| package.name.to_string()).collect();
    let mut findings = Vec::new();
    for folder in ["services", "clients", "cmd"] {
        for (name, package) in workspace.packages_in(folder) {
            let used = workspace
                .declared_dependencies(package)
                .into_iter()
                .filter(|declared| programs.contains(declared.name));
            findings.extend(used.map(|declared| format!("{folder}/{name}: depends on the program {}", declared.name)));
        }
    }
    assert_none(&findings);
}
