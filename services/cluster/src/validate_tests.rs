use super::*;
use crate::GroupConfig;

fn valid() -> ClusterConfig {
    let nodes = (1..=3).map(|number| (format!("nd_{number}"), format!("127.0.0.1:{}", 6999 + number))).collect();
    ClusterConfig::generate(nodes, 4, 3).unwrap()
}

/// Returns the location and the whole message of the error for a valid config after `break_it`.
fn validation_error(break_it: impl FnOnce(&mut ClusterConfig)) -> (String, String) {
    let mut config = valid();
    break_it(&mut config);
    let error = config.validate().unwrap_err();
    (error.field_path().unwrap().to_owned(), error.to_string())
}

fn invalid_field(break_it: impl FnOnce(&mut ClusterConfig)) -> String {
    validation_error(break_it).0
}

#[test]
fn a_valid_config_passes_also_with_its_shards_in_another_order() {
    let mut config = valid();
    config.validate().unwrap();
    config.applications[2].shards.reverse();
    config.applications.reverse();
    config.validate().unwrap();
}

#[test]
fn a_gap_names_the_keys_without_a_shard() {
    let (place, message) = validation_error(|config| config.applications[2].shards[3].lower_bound = 0xd000_0000);
    assert_eq!(place, "applications[2].shards[3].lower_bound");
    assert!(message.contains("no shard owns the keys c0000000 to cfffffff"), "{message}");
    assert!(message.ends_with("set it to c0000000, or add a shard for them"), "{message}");

    let (place, message) = validation_error(|config| config.applications[1].shards[0].lower_bound = 1);
    assert_eq!(place, "applications[1].shards[0].lower_bound");
    assert!(message.contains("the keys 00000000 to 00000000"), "{message}");

    let (place, message) = validation_error(|config| config.applications[0].shards[0].upper_bound = 0xffff_fffe);
    assert_eq!(place, "applications[0].shards[0].upper_bound");
    assert!(message.contains("the keys ffffffff to ffffffff"), "{message}");
}

#[test]
fn an_overlap_names_the_keys_with_two_shards() {
    let (place, message) = validation_error(|config| config.applications[2].shards[3].lower_bound = 0xb000_0000);
    assert_eq!(place, "applications[2].shards[3].lower_bound");
    assert!(message.contains("two shards own the keys b0000000 to bfffffff"), "{message}");
    assert!(message.ends_with("set it to c0000000"), "{message}");

    let (_, message) = validation_error(|config| config.applications[2].shards[0].upper_bound = 0xffff_ffff);
    assert!(message.contains("two shards own the keys 40000000 to 7fffffff"), "{message}");
}

#[test]
fn bounds_the_wrong_way_round_are_refused() {
    let (place, message) = validation_error(|config| config.applications[2].shards[1].upper_bound = 0);
    assert_eq!(place, "applications[2].shards[1].lower_bound");
    assert!(message.contains("40000000 is above the upper_bound 00000000"), "{message}");
}

#[test]
fn repeated_ids_are_refused_wherever_the_first_was() {
    let (at, message) = validation_error(|config| config.nodes[2].id = "nd_1".to_owned());
    assert_eq!(at, "nodes[2].id");
    assert!(message.contains("nodes[0].id"), "{message}");

    let (at, message) = validation_error(|config| config.applications[2].shards[0].id = "namespaces_01".to_owned());
    assert_eq!(at, "applications[2].shards[0].id");
    assert!(message.contains("applications[1].shards[1].id"), "{message}");

    let (at, message) = validation_error(|config| config.groups[1].replicas[2].id = 1);
    assert_eq!(at, "groups[1].replicas[2].id");
    assert!(message.contains("groups[0].replicas[0].id"), "{message}");

    let (at, message) = validation_error(|config| config.groups[2].id = "g1".to_owned());
    assert_eq!(at, "groups[2].id");
    assert!(message.contains("groups[0].id"), "{message}");

    assert_eq!(invalid_field(|config| config.nodes[1].address = config.nodes[0].address.clone()), "nodes[1].address");

    let (at, message) = validation_error(|config| {
        config.nodes[0].gateway_address = Some("gateway.example.com:8080".to_owned());
        config.nodes[2].gateway_address = config.nodes[0].gateway_address.clone();
    });
    assert_eq!(at, "nodes[2].gateway_address");
    assert!(message.contains("nodes[0].gateway_address"), "{message}");
}

#[test]
fn replicas_that_do_not_fit_their_nodes_are_refused() {
    let (at, message) = validation_error(|config| {
        let taken = config.groups[2].replicas[0].node_id.clone();
        config.groups[2].replicas[2].node_id = taken;
    });
    assert_eq!(at, "groups[2].replicas[2].node_id");
    assert!(message.contains("already keeps groups[2].replicas[0] of this group"), "{message}");

    let (at, message) = validation_error(|config| config.groups[0].replicas[1].node_id = "nd_9".into());
    assert_eq!(at, "groups[0].replicas[1].node_id");
    assert!(message.contains("there is no node \"nd_9\""), "{message}");

    let (at, message) = validation_error(|config| drop(config.groups[2].replicas.pop()));
    assert_eq!(at, "groups[2].replicas");
    assert!(message.contains("there are 2, but replication_factor is 3"), "{message}");

    assert_eq!(
        invalid_field(|config| config.applications[1].replication_factor = 4),
        "applications[1].replication_factor"
    );
    assert_eq!(
        invalid_field(|config| config.applications[1].replication_factor = 0),
        "applications[1].replication_factor"
    );
    assert_eq!(invalid_field(|config| config.groups[0].replicas[0].id = 0), "groups[0].replicas[0].id");
    assert_eq!(invalid_field(|config| config.groups[0].replicas[0].id = 1 << 53), "groups[0].replicas[0].id");
}

#[test]
fn a_shard_of_an_unknown_group_is_refused() {
    let (at, message) = validation_error(|config| config.applications[1].shards[2].group = "g9".to_owned());
    assert_eq!(at, "applications[1].shards[2].group");
    assert!(message.contains("there is no group \"g9\""), "{message}");
}

#[test]
fn a_group_has_the_replicas_that_each_of_its_applications_asks_for() {
    let (at, message) = validation_error(|config| config.applications[1].replication_factor = 1);
    assert_eq!(at, "groups[0].replicas");
    assert!(message.contains("there are 3, but replication_factor is 1 for Namespaces"), "{message}");
    // One more is allowed while a replica moves, and a factor of one less is the same.
    let mut config = valid();
    config.applications[1].replication_factor = 2;
    config.validate().unwrap();
}

#[test]
fn a_group_without_shards_may_have_any_number_of_replicas_but_none() {
    let group = |replicas| GroupConfig { id: "g9".to_owned(), replicas };
    let mut config = valid();
    config.next_replica_id = Some(101);
    config.groups.push(group(vec![Replica { id: 100, node_id: "nd_2".to_owned() }]));
    config.validate().unwrap();
    assert_eq!(invalid_field(|config| config.groups.push(group(Vec::new()))), "groups[3].replicas");
}

#[test]
fn too_many_groups_are_refused() {
    let (at, message) = validation_error(|config| {
        for id in 0..1_022 {
            let replicas = vec![Replica { id: 100 + id, node_id: "nd_1".to_owned() }];
            config.groups.push(GroupConfig { id: format!("more_{id}"), replicas });
        }
    });
    assert_eq!(at, "groups");
    assert!(message.contains("there are 1025; use at most 1024"), "{message}");
}

#[test]
fn a_next_replica_id_that_is_in_use_is_refused() {
    let (at, message) = validation_error(|config| config.next_replica_id = Some(9));
    assert_eq!(at, "next_replica_id");
    assert!(message.contains("groups[2].replicas[2].id is 9"), "{message}");
}

#[test]
fn each_application_must_be_there_once() {
    let (at, message) = validation_error(|config| drop(config.applications.remove(1)));
    assert_eq!(at, "applications");
    assert!(message.contains("Namespaces is missing"), "{message}");
    assert_eq!(invalid_field(|config| config.applications[2].name = Application::Accounts), "applications[2].name");
}

#[test]
fn empty_lists_and_version_zero_are_refused() {
    assert_eq!(invalid_field(|config| config.nodes.clear()), "nodes");
    assert_eq!(invalid_field(|config| config.applications.clear()), "applications");
    assert_eq!(invalid_field(|config| config.applications[1].shards.clear()), "applications[1].shards");
    assert_eq!(invalid_field(|config| config.groups[1].replicas.clear()), "groups[1].replicas");
    assert_eq!(invalid_field(|config| config.version = 0), "version");
}

#[test]
fn ids_that_are_no_ids_are_refused() {
    for bad in ["", "nd 1", "nd/1", "nöd", &"n".repeat(65)] {
        assert_eq!(invalid_field(|config| config.nodes[0].id = bad.to_owned()), "nodes[0].id");
        assert_eq!(
            invalid_field(|config| config.applications[0].shards[0].id = bad.to_owned()),
            "applications[0].shards[0].id"
        );
        assert_eq!(invalid_field(|config| config.groups[0].id = bad.to_owned()), "groups[0].id");
    }
}

#[test]
fn addresses_that_nobody_can_dial_are_refused() {
    let bad = ["", ":7000", "host", "host:", "host:0", "host:70000", "http://host:7000", "0.0.0.0:7000", "[::]:7000"];
    let more = ["127.0.0.1:0", "1.2.3:7000", "1.2.3.400:7000", "::1:7000", "a..b:7000", "-a:7000", "a b:7000"];
    for address in bad.into_iter().chain(more) {
        assert_eq!(
            invalid_field(|config| config.nodes[1].address = address.to_owned()),
            "nodes[1].address",
            "{address}"
        );
        assert_eq!(
            invalid_field(|config| config.nodes[1].gateway_address = Some(address.to_owned())),
            "nodes[1].gateway_address",
            "{address}"
        );
    }
}

#[test]
fn usual_addresses_are_accepted() {
    for address in ["10.0.0.7:7000", "[fd00::7]:7000", "node-1:7000", "node-1.example.com:7000", "holdfast_node:1"] {
        let mut config = valid();
        config.nodes[1].address = address.to_owned();
        config.nodes[2].gateway_address = Some(address.to_owned());
        config.validate().unwrap();
    }
}

#[test]
fn replicas_of_a_group_share_a_zone_only_if_there_are_not_enough() {
    let in_zones = |zones: [Option<&str>; 4]| {
        let mut config = valid();
        let (id, address) = ("nd_4".to_owned(), "127.0.0.1:7003".to_owned());
        config.nodes.push(Node { id, address, gateway_address: None, zone: None });
        config.nodes.iter_mut().zip(zones).for_each(|(node, zone)| node.zone = zone.map(str::to_owned));
        config.validate().unwrap();
        ClusterConfig::from_json(&config.to_json()).unwrap()
    };
    let (a, b, c) = (Some("a"), Some("b"), Some("c"));
    for (zones, expected) in
        [([a, b, c, None], false), ([a, a, b, b], false), ([a, a, None, c], false), ([a, a, b, c], true)]
    {
        let config = in_zones(zones);
        assert_eq!(config.shares_zone(&config.groups[0]), expected, "{zones:?}");
    }
}
