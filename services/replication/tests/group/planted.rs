//! That tests of this program fail with the fault that they are for. Each runs in a process of its own, with the fault
//! and without it. Only in a build that is armed: `make plants`.

use std::process::Command;

use holdfast_plant::{Plant, plant};

/// Which faults a process of this program is to plant, by their names.
const PLANTS: &str = "HOLDFAST_TEST_PLANTS";

/// Plants what this process was started with. Called by every test that has a cluster.
pub(crate) fn plant_as_told() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let named = std::env::var(PLANTS).unwrap_or_default();
        for name in named.split_whitespace() {
            let fault = Plant::from_name(name).unwrap_or_else(|| panic!("there is no fault named {name:?}"));
            assert!(plant(fault), "this build is not armed: `make plants` makes one that is");
        }
    });
}

/// Whether the test succeeds with these faults.
fn succeeds(test: &str, plants: &[Plant]) -> bool {
    let names: Vec<&str> = plants.iter().map(|plant| plant.name()).collect();
    let this = std::env::current_exe().expect("it has a path");
    let run = Command::new(this).args(["--exact", test, "--nocapture"]).env(PLANTS, names.join(" ")).output();
    let run = run.expect("it runs");
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(text.contains("running 1 test"), "there is no test {test}");
    assert!(run.status.success() || text.contains("panicked") || text.contains("FAILED"), "{text}");
    run.status.success()
}

/// The fault that this one is planted with.
fn beside(fault: Plant) -> Option<Plant> {
    (fault == Plant::LeadershipWithdrawnLate).then_some(Plant::VoteUntied)
}

#[test]
#[ignore = "only in a build that is armed: make plants"]
fn every_planted_fault_breaks_its_test() {
    println!("| planted fault | fails |\n|---|---|");
    let mut missed = Vec::new();
    for fault in Plant::ALL.iter().copied() {
        let Some(test) = fault.unit_test() else { continue };
        assert!(succeeds(test, &[]), "{test} fails without a fault too");
        let with = beside(fault);
        if with.is_some() {
            // What makes another fault visible is none by itself.
            assert!(succeeds(test, &[fault]), "{test} fails with {} alone", fault.name());
        }
        let plants: Vec<Plant> = [fault].into_iter().chain(with).collect();
        let names: Vec<&str> = plants.iter().map(|plant| plant.name()).collect();
        let is_found = !succeeds(test, &plants);
        println!("| {} | {} |", names.join(" with "), if is_found { test } else { "nothing" });
        missed.extend((!is_found).then_some(names));
    }
    assert!(missed.is_empty(), "these faults break no test: {missed:?}");
}
